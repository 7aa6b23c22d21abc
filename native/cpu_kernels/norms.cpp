// Layer norm and RMS norm of rows, and their backward pass:
//
//   norm(x, scale, shift, out, columns, eps, centered)
//   layer_norm_backward(g, x, scale, out, columns, eps, centered)      gradient of x
//
// centered: layer norm; else RMS norm. Examples: tests/ops/native/test_loops.py.
#include "cpu_kernels/arrays.hpp"
#include "cpu_kernels/param_loop.hpp"

#include <cmath>

namespace {

// Layer norm (centered) or RMS norm of rows. Sums are float64: accurate for rows of any length and
// for means far from 0. scale, shift: one value for each column, or null.
struct Norm {
    size_t rows, columns;
    const float *scale, *shift;
    double eps;
    bool centered;
};

using NormKernel = void (*)(const Norm&, const float*, float*);
using BackwardKernel = void (*)(const Norm&, const float*, const float*, float*);

template <bool SQUARED>
INLINED double mean(const float* x, size_t count)
{
    constexpr size_t lanes = 8;
    double sums[lanes] = {}, total = 0;
    size_t at = 0;
    for (; at + lanes <= count; at += lanes)
        for (size_t lane = 0; lane < lanes; ++lane) {
            const double value = x[at + lane];
            sums[lane] += SQUARED ? value * value : value;
        }
    for (; at < count; ++at) {
        const double value = x[at];
        sums[0] += SQUARED ? value * value : value;
    }
    for (const double sum : sums)
        total += sum;
    return total / static_cast<double>(count);
}

// Return the divisor: the standard deviation (centered) or root mean square.
INLINED float norm_row(const Norm& norm, const float* x, float* out)
{
    const double row_mean = norm.centered ? mean<false>(x, norm.columns) : 0;
    const float mean_high = static_cast<float>(row_mean),
                mean_low = static_cast<float>(row_mean - mean_high);
#pragma GCC ivdep
    for (size_t at = 0; at < norm.columns; ++at)
        out[at] = (x[at] - mean_high) - mean_low;
    const float stddev = static_cast<float>(std::sqrt(mean<true>(out, norm.columns) + norm.eps));
#pragma GCC ivdep
    for (size_t at = 0; at < norm.columns; ++at) {
        float value = out[at] / stddev;
        if (norm.scale)
            value *= norm.scale[at];
        if (norm.shift)
            value += norm.shift[at];
        out[at] = value;
    }
    return stddev;
}

// The gradient of a row: (h - mean(h) - n mean(h n)) / stddev with h = g * scale and n the
// normalized row.
INLINED void norm_backward_row(const Norm& norm, const float* g, const float* x, float* out)
{
    const float stddev =
        norm_row({1, norm.columns, nullptr, nullptr, norm.eps, norm.centered}, x, out);
    constexpr size_t lanes = 8;
    double h_sums[lanes] = {}, hn_sums[lanes] = {}, h_sum = 0, hn_sum = 0;
    // exact in float64: the gradient is 0 where h is constant
    const auto h = [&](size_t at) {
        return norm.scale ? static_cast<double>(g[at]) * norm.scale[at] : g[at];
    };
    size_t at = 0;
    for (; at + lanes <= norm.columns; at += lanes)
        for (size_t lane = 0; lane < lanes; ++lane) {
            h_sums[lane] += h(at + lane);
            hn_sums[lane] += h(at + lane) * out[at + lane];
        }
    for (; at < norm.columns; ++at) {
        h_sums[0] += h(at);
        hn_sums[0] += h(at) * out[at];
    }
    for (size_t lane = 0; lane < lanes; ++lane) {
        h_sum += h_sums[lane];
        hn_sum += hn_sums[lane];
    }
    const double count = static_cast<double>(norm.columns);
    const double h_mean = norm.centered ? h_sum / count : 0, hn_mean = hn_sum / count;
#pragma GCC ivdep
    for (at = 0; at < norm.columns; ++at)
        out[at] = static_cast<float>((h(at) - h_mean - out[at] * hn_mean) / stddev);
}

INLINED void each_row(const Norm& norm, const float* x, float* out)
{
    for (size_t row = 0; row < norm.rows; ++row)
        norm_row(norm, x + row * norm.columns, out + row * norm.columns);
}

INLINED void each_backward_row(const Norm& norm, const float* g, const float* x, float* out)
{
    for (size_t row = 0; row < norm.rows; ++row) {
        const size_t at = row * norm.columns;
        norm_backward_row(norm, g + at, x + at, out + at);
    }
}

void norm_rows(const Norm& norm, const float* x, float* out) { each_row(norm, x, out); }

void backward_rows(const Norm& norm, const float* g, const float* x, float* out)
{
    each_backward_row(norm, g, x, out);
}

#ifdef TARGET_AVX2
TARGET_AVX2 void norm_rows_avx2(const Norm& norm, const float* x, float* out)
{
    each_row(norm, x, out);
}

TARGET_AVX2 void backward_rows_avx2(const Norm& norm, const float* g, const float* x, float* out)
{
    each_backward_row(norm, g, x, out);
}
#else
constexpr NormKernel norm_rows_avx2 = norm_rows;
constexpr BackwardKernel backward_rows_avx2 = backward_rows;
#endif

// Return the values of an optional operand with one value for each column, or null.
const float* column_values(const py::object& object, py::buffer_info& view, size_t columns)
{
    if (object.is_none())
        return nullptr;
    view = floats(py::cast<py::buffer>(object));
    require(static_cast<size_t>(view.size) == columns, "expected a value for each column");
    return static_cast<const float*>(view.ptr);
}

void norm(const py::buffer& x, const py::object& scale, const py::object& shift,
          const py::buffer& out, size_t columns, double eps, bool centered, bool wide)
{
    const py::buffer_info from = floats(x), to = floats(out, true);
    require(from.size == to.size, "expected as many values in the result as in the operand");
    require(columns > 0 && to.size % columns == 0, "expected whole rows");
    py::buffer_info scales, shifts; // alive until the kernel has ended
    Norm params{};
    params.rows = to.size / columns;
    params.columns = columns;
    params.scale = column_values(scale, scales, columns);
    params.shift = column_values(shift, shifts, columns);
    params.eps = eps;
    params.centered = centered;
    const NormKernel kernel = wide && has_avx2() ? norm_rows_avx2 : norm_rows;
    py::gil_scoped_release unlocked;
    kernel(params, static_cast<const float*>(from.ptr), static_cast<float*>(to.ptr));
}

void layer_norm_backward(const py::buffer& g, const py::buffer& x, const py::object& scale,
                   const py::buffer& out, size_t columns, double eps, bool centered, bool wide)
{
    const py::buffer_info gradients = floats(g), from = floats(x), to = floats(out, true);
    require(from.size == to.size && gradients.size == to.size,
            "expected as many values in the result as in the operands");
    require(columns > 0 && to.size % columns == 0, "expected whole rows");
    py::buffer_info scales; // alive until the kernel has ended
    Norm params{};
    params.rows = to.size / columns;
    params.columns = columns;
    params.scale = column_values(scale, scales, columns);
    params.eps = eps;
    params.centered = centered;
    const BackwardKernel kernel = wide && has_avx2() ? backward_rows_avx2 : backward_rows;
    py::gil_scoped_release unlocked;
    kernel(params, static_cast<const float*>(gradients.ptr), static_cast<const float*>(from.ptr),
         static_cast<float*>(to.ptr));
}

// int_params: rows, columns, centered, has scale, has shift. float_params: eps. A piece is a range
// of rows.
void norms(const ParamLoop<NormKernel>& loop, const Operands& operands, size_t piece)
{
    const int64_t* params = loop.int_params.data();
    const int64_t first = loop.first_row(params[0], piece);
    Norm norm{};
    norm.rows = loop.first_row(params[0], piece + 1) - first;
    norm.columns = params[1];
    norm.centered = params[2] != 0;
    norm.scale = params[3] ? operands.get<float>(1) : nullptr;
    norm.shift = params[4] ? operands.get<float>(params[3] ? 2 : 1) : nullptr;
    norm.eps = loop.float_params[0];
    loop.callee(norm, operands.get<float>(0) + first * params[1],
                loop.result(operands) + first * params[1]);
}

void norms_extents(const ParamLoop<NormKernel>& loop, Extents& extents)
{
    const int64_t* params = loop.int_params.data();
    const size_t affine = (params[3] != 0) + (params[4] != 0);
    require(loop.last == 1 + affine, "expected a slot for each operand and the result");
    for (const size_t slot : {size_t{0}, loop.last})
        extents.add_dense(slot, 4, {params[0], params[1]});
    for (size_t slot = 1; slot <= affine; ++slot)
        extents.add_dense(slot, 4, {params[1]});
}
} // namespace

std::unique_ptr<Loop> norm_loop(const LoopParams& params)
{
    return param_loop(params, {1, 5, 1}, norms, norms_extents,
                      params.wide && has_avx2() ? norm_rows_avx2 : norm_rows);
}

void add_norms(py::module_& m)
{
    m.def("norm", &norm, py::arg("x"), py::arg("scale"), py::arg("shift"), py::arg("out"),
          py::arg("columns"), py::arg("eps"), py::arg("centered"), py::arg("wide") = true);
    m.def("layer_norm_backward", &layer_norm_backward, py::arg("g"), py::arg("x"), py::arg("scale"),
          py::arg("out"), py::arg("columns"), py::arg("eps"), py::arg("centered"),
          py::arg("wide") = true);
}
