// Norms of rows, and their gradient:
//
//   norm(x, scale, shift, out, columns, eps, centered=True)    layer norm of rows
//   norm_gradient(g, x, scale, out, columns, eps, centered)    the gradient by its rows
//
// Examples: tests/ops/native/test_loops.py.
#include "cpu_kernels/arrays.hpp"
#include "cpu_kernels/param_loop.hpp"

#include <cmath>

namespace {

// Layer norm (centered) and RMS norm of rows. Sums are of float64, exact enough for rows of any
// length and for means far from 0. scale, shift: a value for each column, or null.
struct Norm {
    size_t rows, columns;
    const float *scale, *shift;
    double eps;
    bool centered;
};

using NormLoop = void (*)(const Norm&, const float*, float*);
using GradientLoop = void (*)(const Norm&, const float*, const float*, float*);

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

// Returns what differences from the mean were divided by.
INLINED float norm_row(const Norm& norm, const float* x, float* out)
{
    const double centre = norm.centered ? mean<false>(x, norm.columns) : 0;
    const float most = static_cast<float>(centre), rest = static_cast<float>(centre - most);
#pragma GCC ivdep
    for (size_t at = 0; at < norm.columns; ++at)
        out[at] = (x[at] - most) - rest;
    const float spread = static_cast<float>(std::sqrt(mean<true>(out, norm.columns) + norm.eps));
#pragma GCC ivdep
    for (size_t at = 0; at < norm.columns; ++at) {
        float value = out[at] / spread;
        if (norm.scale)
            value *= norm.scale[at];
        if (norm.shift)
            value += norm.shift[at];
        out[at] = value;
    }
    return spread;
}

// The gradient of such a norm by its row: (h - mean(h) - n mean(h n)) * rate with h = g * scale.
INLINED void norm_gradient_row(const Norm& norm, const float* g, const float* x, float* out)
{
    const float spread =
        norm_row({1, norm.columns, nullptr, nullptr, norm.eps, norm.centered}, x, out);
    constexpr size_t lanes = 8;
    double slopes[lanes] = {}, along[lanes] = {}, slope = 0, share = 0;
    // exact in float64: a row along which h is flat gives 0
    const auto h = [&](size_t at) {
        return norm.scale ? static_cast<double>(g[at]) * norm.scale[at] : g[at];
    };
    size_t at = 0;
    for (; at + lanes <= norm.columns; at += lanes)
        for (size_t lane = 0; lane < lanes; ++lane) {
            slopes[lane] += h(at + lane);
            along[lane] += h(at + lane) * out[at + lane];
        }
    for (; at < norm.columns; ++at) {
        slopes[0] += h(at);
        along[0] += h(at) * out[at];
    }
    for (size_t lane = 0; lane < lanes; ++lane) {
        slope += slopes[lane];
        share += along[lane];
    }
    const double count = static_cast<double>(norm.columns);
    const double middle = norm.centered ? slope / count : 0, part = share / count;
#pragma GCC ivdep
    for (at = 0; at < norm.columns; ++at)
        out[at] = static_cast<float>((h(at) - middle - out[at] * part) / spread);
}

INLINED void each_row(const Norm& norm, const float* x, float* out)
{
    for (size_t row = 0; row < norm.rows; ++row)
        norm_row(norm, x + row * norm.columns, out + row * norm.columns);
}

INLINED void each_gradient(const Norm& norm, const float* g, const float* x, float* out)
{
    for (size_t row = 0; row < norm.rows; ++row) {
        const size_t at = row * norm.columns;
        norm_gradient_row(norm, g + at, x + at, out + at);
    }
}

void norm_rows(const Norm& norm, const float* x, float* out) { each_row(norm, x, out); }

void gradient_rows(const Norm& norm, const float* g, const float* x, float* out)
{
    each_gradient(norm, g, x, out);
}

#ifdef WIDE
WIDE void norm_rows_wide(const Norm& norm, const float* x, float* out) { each_row(norm, x, out); }

WIDE void gradient_rows_wide(const Norm& norm, const float* g, const float* x, float* out)
{
    each_gradient(norm, g, x, out);
}
#else
constexpr NormLoop norm_rows_wide = norm_rows;
constexpr GradientLoop gradient_rows_wide = gradient_rows;
#endif

// The values of an operand with one for each column; null without it.
const float* of_columns(const py::object& given, py::buffer_info& kept, size_t columns)
{
    if (given.is_none())
        return nullptr;
    kept = floats(py::cast<py::buffer>(given));
    require(static_cast<size_t>(kept.size) == columns, "expected a value for each column");
    return static_cast<const float*>(kept.ptr);
}

void norm(const py::buffer& x, const py::object& scale, const py::object& shift,
          const py::buffer& out, size_t columns, double eps, bool centered, bool wide)
{
    const py::buffer_info from = floats(x), to = floats(out, true);
    require(from.size == to.size, "expected as many values in the result as in the operand");
    require(columns > 0 && to.size % columns == 0, "expected whole rows");
    py::buffer_info scales, shifts; // kept until the loop has ended
    Norm told{};
    told.rows = to.size / columns;
    told.columns = columns;
    told.scale = of_columns(scale, scales, columns);
    told.shift = of_columns(shift, shifts, columns);
    told.eps = eps;
    told.centered = centered;
    const NormLoop loop = wide && has_wide() ? norm_rows_wide : norm_rows;
    py::gil_scoped_release unlocked;
    loop(told, static_cast<const float*>(from.ptr), static_cast<float*>(to.ptr));
}

void norm_gradient(const py::buffer& g, const py::buffer& x, const py::object& scale,
                   const py::buffer& out, size_t columns, double eps, bool centered, bool wide)
{
    const py::buffer_info slopes = floats(g), from = floats(x), to = floats(out, true);
    require(from.size == to.size && slopes.size == to.size,
            "expected as many values in the result as in the operands");
    require(columns > 0 && to.size % columns == 0, "expected whole rows");
    py::buffer_info scales; // kept until the loop has ended
    Norm told{};
    told.rows = to.size / columns;
    told.columns = columns;
    told.scale = of_columns(scale, scales, columns);
    told.eps = eps;
    told.centered = centered;
    const GradientLoop loop = wide && has_wide() ? gradient_rows_wide : gradient_rows;
    py::gil_scoped_release unlocked;
    loop(told, static_cast<const float*>(slopes.ptr), static_cast<const float*>(from.ptr),
         static_cast<float*>(to.ptr));
}

// numbers: rows, columns, centered, scaled, shifted. reals: eps. A piece: some rows.
void norms(const ToldLoop<NormLoop>& step, const Operands& given, size_t piece)
{
    const int64_t* told = step.numbers.data();
    const int64_t first = step.first_row(told[0], piece);
    Norm norm{};
    norm.rows = step.first_row(told[0], piece + 1) - first;
    norm.columns = told[1];
    norm.centered = told[2] != 0;
    norm.scale = told[3] ? given.get<float>(1) : nullptr;
    norm.shift = told[4] ? given.get<float>(told[3] ? 2 : 1) : nullptr;
    norm.eps = step.reals[0];
    step.called(norm, given.get<float>(0) + first * told[1], step.result(given) + first * told[1]);
}

void norms_reach(const ToldLoop<NormLoop>& step, Extents& to)
{
    const int64_t* told = step.numbers.data();
    const size_t given = (told[3] != 0) + (told[4] != 0);
    require(step.last == 1 + given, "expected a slot for each operand and the result");
    for (const size_t slot : {size_t{0}, step.last})
        to.all(slot, 4, {told[0], told[1]});
    for (size_t slot = 1; slot <= given; ++slot)
        to.all(slot, 4, {told[1]});
}
} // namespace

std::unique_ptr<Loop> norm_loop(const Told& told)
{
    return told_loop(told, {1, 5, 1}, norms, norms_reach, told.wide && has_wide() ? norm_rows_wide : norm_rows);
}

void add_norms(py::module_& m)
{
    m.def("norm", &norm, py::arg("x"), py::arg("scale"), py::arg("shift"), py::arg("out"),
          py::arg("columns"), py::arg("eps"), py::arg("centered"), py::arg("wide") = true);
    m.def("norm_gradient", &norm_gradient, py::arg("g"), py::arg("x"), py::arg("scale"),
          py::arg("out"), py::arg("columns"), py::arg("eps"), py::arg("centered"),
          py::arg("wide") = true);
}
