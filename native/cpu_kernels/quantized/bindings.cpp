// Python bindings of quantized weights:
//
//   quantized_linear("q4_K", x, words, bias, out)          out = x @ w.T (+ bias), for few rows
//   dequantize("q4_K", words, out)
//   quantize_rows_q8("q4_K", x, q8_rows)                   x (m, k) as int8 quants, scales and sums
//   quantized_linear_q8("q4_K", q8_rows, words, bias, out) the same product with int8 activations
#include "cpu_kernels/quantized/quant_arrays.hpp"

#include <pybind11/stl.h>

#ifdef HAS_VECTOR_EXTENSIONS
namespace {

size_t row_words_of(const std::string& name, size_t columns)
{
    const QuantFormat& format = quant_format(name, false);
    return row_words(columns, format.tile_words, format.low_bits);
}

void quantized_linear(const std::string& name, const py::buffer& x, const py::buffer& words,
                   const py::object& bias, const py::buffer& out, bool wide)
{
    const Matrix<const float> from(x);
    const Matrix<const uint32_t> weight(words);
    const Matrix<float> to(out);
    require(from.row() == from.columns() && to.rows() == from.rows()
                && to.columns() == weight.rows(),
            "expected x (m, k) without gaps, n rows of words and a result (m, n)");
    QuantMatmul params = make_quant_matmul(weight, from.columns());
    require(weight.columns() == row_words_of(name, params.columns),
            "expected rows of the words of the format");
    params.out_stride = to.row();
    const py::buffer_info bias_view = bias_of(bias, params);
    const QuantKernel kernel = quant_format(name, wide).linear;
    py::gil_scoped_release unlocked;
    kernel(params, from.data(), from.rows(), to.data());
}

void dequantize(const std::string& name, const py::buffer& words, const py::buffer& out, bool wide)
{
    const Matrix<const uint32_t> weight(words);
    const Matrix<float> to(out);
    require(to.row() == to.columns() && to.rows() == weight.rows(), "expected a result (n, k)");
    const QuantMatmul params = make_quant_matmul(weight, to.columns());
    require(weight.columns() == row_words_of(name, params.columns),
            "expected rows of the words of the format");
    const QuantKernel kernel = quant_format(name, wide).dequantize;
    py::gil_scoped_release unlocked;
    kernel(params, nullptr, 0, to.data());
}

// Return the number of words of a row that is quantized to Q8.
size_t q8_row_words(size_t columns) { return (columns + TILE - 1) / TILE * Q8_TILE_WORDS; }

// Return the number of columns of Q8 rows: the length of the last tile follows from the row length
// of the weight.
size_t columns_of(const Matrix<const uint32_t>& q8_rows, size_t row_words_of_weight,
                  const Q8Format& format)
{
    const size_t tiles = q8_rows.columns() / Q8_TILE_WORDS;
    const size_t max_words = row_words(tiles * TILE, format.tile_words, format.low_bits);
    const size_t missing = max_words < row_words_of_weight
                               ? RUNS
                               : (max_words - row_words_of_weight) / format.low_bits;
    require(missing < RUNS, "expected Q8 rows with the weight's number of columns");
    return tiles * TILE - missing * RUN;
}

void quantize_rows_q8(const std::string& name, const py::buffer& x, const py::buffer& out,
                const std::string& target)
{
    const Matrix<const float> from(x);
    const Matrix<uint32_t> to(out);
    const size_t columns = from.columns();
    require(from.row() == columns && columns % RUN == 0 && to.row() == to.columns()
                && to.rows() == from.rows() && to.columns() == q8_row_words(columns),
            "expected x (m, k) without gaps and a result (m, words of Q8 tiles)");
    const Q8Format& format = q8_format(name, target);
    py::gil_scoped_release unlocked;
    format.quantize(from.data(), from.rows(), columns, reinterpret_cast<Q8Tile*>(to.data()));
}

void quantized_linear_q8(const std::string& name, const py::buffer& q8_rows,
                         const py::buffer& words, const py::object& bias, const py::buffer& out,
                         const std::string& target)
{
    const Matrix<const uint32_t> from(q8_rows), weight(words);
    const Matrix<float> to(out);
    const Q8Format& format = q8_format(name, target);
    const size_t columns = columns_of(from, weight.columns(), format);
    require(from.row() == from.columns() && from.columns() == q8_row_words(columns)
                && to.rows() == from.rows() && to.columns() == weight.rows()
                && weight.columns() == row_words(columns, format.tile_words, format.low_bits),
            "expected Q8 rows (m, k), n rows of words and a result (m, n)");
    QuantMatmul params = make_quant_matmul(weight, columns);
    params.out_stride = to.row();
    const py::buffer_info bias_view = bias_of(bias, params);
    py::gil_scoped_release unlocked;
    format.linear(params, reinterpret_cast<const Q8Tile*>(from.data()), from.rows(), to.data());
}

} // namespace

void add_quantized(py::module_& m)
{
    m.attr("quant_layout_version") = QUANT_LAYOUT_VERSION;
    m.attr("quant_formats") = quant_formats();
    m.def("quantized_linear", &quantized_linear, py::arg("format"), py::arg("x"), py::arg("words"),
          py::arg("bias"), py::arg("out"), py::arg("wide") = true);
    m.def("dequantize", &dequantize, py::arg("format"), py::arg("words"), py::arg("out"),
          py::arg("wide") = true);
}

void add_q8(py::module_& m)
{
    m.attr("q8_formats") = q8_formats();
    m.attr("q8_targets") = q8_targets();
    m.def("q8_row_words", &q8_row_words, py::arg("columns"));
    m.def("quantize_rows_q8", &quantize_rows_q8, py::arg("format"), py::arg("x"), py::arg("out"),
          py::arg("target") = "");
    m.def("quantized_linear_q8", &quantized_linear_q8, py::arg("format"), py::arg("q8_rows"),
          py::arg("words"), py::arg("bias"), py::arg("out"), py::arg("target") = "");
}
#else
void add_quantized(py::module_& m) { m.attr("quant_formats") = py::list(); }
void add_q8(py::module_& m) { m.attr("q8_formats") = py::list(); }
#endif
