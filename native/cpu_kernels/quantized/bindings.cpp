// What Python calls of the loops over weights of few bits:
//
//   linear_packed("q4_K", x, words, bias, out)         out = x @ values.T (+ bias), for few rows of x
//   unpack("q4_K", words, out)                         the values
//   round_rows("q4_K", x, rounded)                     x (m, k) as codes, scales and sums of codes
//   linear_rounded("q4_K", rounded, words, bias, out)  out = rounded @ values.T (+ bias)
#include "cpu_kernels/quantized/quant_arrays.hpp"

#include <pybind11/stl.h>

#ifdef HAS_VECTORS
namespace {

size_t row_words_of(const std::string& name, size_t columns)
{
    const PackedFormat& format = packed_format(name, false);
    return row_words(columns, format.tile_words, format.low);
}

void linear_packed(const std::string& name, const py::buffer& x, const py::buffer& words,
                   const py::object& bias, const py::buffer& out, bool wide)
{
    const Matrix<const float> from(x);
    const Matrix<const uint32_t> weight(words);
    const Matrix<float> to(out);
    require(from.row() == from.columns() && to.rows() == from.rows()
                && to.columns() == weight.rows(),
            "expected x (m, k) without gaps, n rows of words and a result (m, n)");
    Packed told = packed(weight, from.columns());
    require(weight.columns() == row_words_of(name, told.columns), "expected other rows of words");
    told.out_row = to.row();
    const py::buffer_info shift = bias_of(bias, told);
    const PackedLoop loop = packed_format(name, wide).linear;
    py::gil_scoped_release unlocked;
    loop(told, from.data(), from.rows(), to.data());
}

void unpack(const std::string& name, const py::buffer& words, const py::buffer& out, bool wide)
{
    const Matrix<const uint32_t> weight(words);
    const Matrix<float> to(out);
    require(to.row() == to.columns() && to.rows() == weight.rows(), "expected a result (n, k)");
    const Packed told = packed(weight, to.columns());
    require(weight.columns() == row_words_of(name, told.columns), "expected other rows of words");
    const PackedLoop loop = packed_format(name, wide).unpack;
    py::gil_scoped_release unlocked;
    loop(told, nullptr, 0, to.data());
}

// Words of a rounded row.
size_t rounded_words(size_t columns) { return (columns + TILE - 1) / TILE * ROUNDED_WORDS; }

// The columns of rounded rows, of which the last tile is as long as the words of the weight say.
size_t columns_of(const Matrix<const uint32_t>& rounded, size_t own_words,
                  const RoundedFormat& format)
{
    const size_t tiles = rounded.columns() / ROUNDED_WORDS;
    const size_t most = row_words(tiles * TILE, format.tile_words, format.low);
    const size_t missing = most < own_words ? RUNS : (most - own_words) / format.low;
    require(missing < RUNS, "expected rounded rows of the weight's columns");
    return tiles * TILE - missing * RUN;
}

void round_rows(const std::string& name, const py::buffer& x, const py::buffer& out,
                const std::string& way)
{
    const Matrix<const float> from(x);
    const Matrix<uint32_t> to(out);
    const size_t columns = from.columns();
    require(from.row() == columns && columns % RUN == 0 && to.row() == to.columns()
                && to.rows() == from.rows() && to.columns() == rounded_words(columns),
            "expected x (m, k) without gaps and a result (m, words of rounded tiles)");
    const RoundedFormat& format = rounded_format(name, way);
    py::gil_scoped_release unlocked;
    format.round(from.data(), from.rows(), columns, reinterpret_cast<Rounded*>(to.data()));
}

void linear_rounded(const std::string& name, const py::buffer& rounded, const py::buffer& words,
                    const py::object& bias, const py::buffer& out,
                    const std::string& way)
{
    const Matrix<const uint32_t> from(rounded), weight(words);
    const Matrix<float> to(out);
    const RoundedFormat& format = rounded_format(name, way);
    const size_t columns = columns_of(from, weight.columns(), format);
    require(from.row() == from.columns() && from.columns() == rounded_words(columns)
                && to.rows() == from.rows() && to.columns() == weight.rows()
                && weight.columns() == row_words(columns, format.tile_words, format.low),
            "expected rounded rows (m, k), n rows of words and a result (m, n)");
    Packed told = packed(weight, columns);
    told.out_row = to.row();
    const py::buffer_info shift = bias_of(bias, told);
    py::gil_scoped_release unlocked;
    format.linear(told, reinterpret_cast<const Rounded*>(from.data()), from.rows(), to.data());
}

} // namespace

void add_packed(py::module_& m)
{
    m.attr("words_version") = WORDS_VERSION;
    m.attr("packed_formats") = packed_formats();
    m.def("linear_packed", &linear_packed, py::arg("format"), py::arg("x"), py::arg("words"),
          py::arg("bias"), py::arg("out"), py::arg("wide") = true);
    m.def("unpack", &unpack, py::arg("format"), py::arg("words"), py::arg("out"),
          py::arg("wide") = true);
}

void add_rounded(py::module_& m)
{
    m.attr("rounded_formats") = rounded_formats();
    m.attr("rounded_ways") = rounded_ways();
    m.def("rounded_words", &rounded_words, py::arg("columns"));
    m.def("round_rows", &round_rows, py::arg("format"), py::arg("x"), py::arg("out"),
          py::arg("way") = "");
    m.def("linear_rounded", &linear_rounded, py::arg("format"), py::arg("rounded"),
          py::arg("words"), py::arg("bias"), py::arg("out"), py::arg("way") = "");
}
#else
void add_packed(py::module_& m) { m.attr("packed_formats") = py::list(); }
void add_rounded(py::module_& m) { m.attr("rounded_formats") = py::list(); }
#endif
