// Loops of the CPU backend: what takes numpy many passes over float32, in one, without the
// interpreter lock.
//
//   run("gelu", x, out)                                        out[i] = gelu(x[i])
//   norm(x, scale, shift, out, columns, eps, centered=True)    layer norm of rows
//   norm_gradient(g, x, scale, out, columns, eps, centered)    the gradient by its rows
//
// Plain loops that compilers turn into vectors; on x86 twice, as most processors have wider ones
// than a build for all of them may use. No other module is needed. What the formulas of functions
// are good for says vksched/ops/elementwise/special.py; NaN stays NaN. Examples: tests/ops/test_loops.py.
#include "exponential.hpp"
#include "loops.hpp"

#include <cmath>
#include <limits>
#include <map>
#include <string>

#if defined(__x86_64__)
#define WIDE __attribute__((target("avx2,fma")))
#endif

namespace {

struct Erf {
    INLINED float of(float x)
    {
        constexpr float above[] = {1.1283791461606922f, 0.19040729479621846f,
                                   0.05274880097581463f, 0.003765642460680702f,
                                   0.0002848814857589479f, 2.050057456119928e-06f};
        constexpr float below[] = {1.0f, 0.5020768126914162f, 0.11410942442046797f,
                                   0.01496927111307666f, 0.0011625382191661356f,
                                   3.809134100559774e-05f};
        const float z = clipped(x, 3.92f), square = z * z;
        return clipped(z * polynomial(above, square) / polynomial(below, square), 1.0f);
    }
};

struct Gelu {
    // 2 (1 - Phi(2 h)) exp(2 h^2)
    INLINED float tail(float h)
    {
        constexpr float above[] = {23.61601338f, 34.08407392f, 22.45761536f, 6.38226608f};
        constexpr float below[] = {23.61602178f, 71.76895394f, 89.76562072f, 56.2526436f, 16.0f};
        return polynomial(above, h) / polynomial(below, h);
    }

    INLINED float of(float x)
    {
        const float size = std::fabs(0.5f * x), h = clipped(size, 1e4f);
        return (0.5f * x + size) - h * tail(h) * exponential(-2.0f * h * h);
    }
};

struct GeluTanh {
    INLINED float of(float x)
    {
        const float u = x * (0.79788456f + 0.035677408f * x * x);
        return x / (1.0f + exponential(-2.0f * u));
    }
};

// Of -|x| first; both sides together are 1.
struct GeluSlope {
    INLINED float of(float x)
    {
        const float size = std::fabs(x), h = clipped(0.5f * size, 1e4f);
        const float tail = 0.5f * Gelu::tail(h) - 0.39894228f * 2.0f * h;
        const float part = tail * exponential(-2.0f * h * h);
        return x > 0 ? 1.0f - part : x == x ? part : x;
    }
};

struct GeluTanhSlope {
    INLINED float of(float x)
    {
        constexpr float k = 1.59576912f, cubic = 0.0713548163f;
        const float z = clipped(std::fabs(x), 20.0f), q = cubic * z * z;
        const float e = exponential(-z * (q + k)), s = 1.0f / (1.0f + e);
        const float rise = s * z * (3.0f * q + k);
        return x < 0 ? e * s * (1.0f - rise) : s + e * s * rise;
    }
};

struct Exp {
    INLINED float of(float x) { return exponential(x); }
};

// x = 2**n m with m within sqrt(2); log(m) = 2 s (1 + s**2 / 3 + s**4 / 5 ...) of s = (m - 1) / (m + 1),
// to a relative error of 2e-9.
struct Log {
    INLINED float of(float x)
    {
        constexpr float p[] = {1.0f, 1.0f / 3, 1.0f / 5, 1.0f / 7, 1.0f / 9};
        constexpr float infinite = std::numeric_limits<float>::infinity();
        const bool small = x < 0x1p-126f; // which float32 holds with fewer digits
        const int32_t bits = bits_as<int32_t>(small ? x * 0x1p24f : x);
        const int32_t n = (bits - 0x3f3504f3) >> 23; // less the bits of sqrt(0.5)
        const float m = bits_as<float>(static_cast<int32_t>(bits - (static_cast<uint32_t>(n) << 23)));
        const float s = (m - 1.0f) / (m + 1.0f), whole = static_cast<float>(small ? n - 24 : n);
        // log(2) in two parts, as of exponential()
        const float sum = 2.0f * s * polynomial(p, s * s) + whole * -2.12194440e-4f;
        const float beyond = x > 0 ? x : x == 0 ? -infinite : std::numeric_limits<float>::quiet_NaN();
        return x > 0 && x < infinite ? whole * 0.693359375f + sum : beyond;
    }
};

struct Sigmoid {
    INLINED float of(float x) { return 1.0f / (1.0f + exponential(-x)); }
};

struct Silu {
    INLINED float of(float x) { return x / (1.0f + exponential(-x)); }
};

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

using GradientLoop = void (*)(const Norm&, const float*, const float*, float*);

template <class F>
INLINED void each_value(const float* x, float* out, size_t count)
{
#pragma GCC ivdep
    for (size_t at = 0; at < count; ++at)
        out[at] = F::of(x[at]);
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

// Each loop twice: for all processors, and for those with wide vectors.
template <class F>
void over(const float* x, float* out, size_t count)
{
    each_value<F>(x, out, count);
}

void norm_rows(const Norm& norm, const float* x, float* out) { each_row(norm, x, out); }

void gradient_rows(const Norm& norm, const float* g, const float* x, float* out)
{
    each_gradient(norm, g, x, out);
}

#ifdef WIDE
template <class F>
WIDE void over_wide(const float* x, float* out, size_t count)
{
    each_value<F>(x, out, count);
}

WIDE void norm_rows_wide(const Norm& norm, const float* x, float* out) { each_row(norm, x, out); }

WIDE void gradient_rows_wide(const Norm& norm, const float* g, const float* x, float* out)
{
    each_gradient(norm, g, x, out);
}

const bool has_wide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
template <class F>
constexpr ValueLoop over_wide = over<F>;
constexpr NormLoop norm_rows_wide = norm_rows;
constexpr GradientLoop gradient_rows_wide = gradient_rows;
const bool has_wide = false;
#endif

struct Ways {
    ValueLoop plain, wide;
};

const std::map<std::string, Ways> functions{{"exp", {over<Exp>, over_wide<Exp>}},
                                            {"erf", {over<Erf>, over_wide<Erf>}},
                                            {"gelu", {over<Gelu>, over_wide<Gelu>}},
                                            {"gelu_tanh", {over<GeluTanh>, over_wide<GeluTanh>}},
                                            {"gelu_slope", {over<GeluSlope>, over_wide<GeluSlope>}},
                                            {"gelu_tanh_slope",
                                             {over<GeluTanhSlope>, over_wide<GeluTanhSlope>}},
                                            {"log", {over<Log>, over_wide<Log>}},
                                            {"sigmoid", {over<Sigmoid>, over_wide<Sigmoid>}},
                                            {"silu", {over<Silu>, over_wide<Silu>}},
                                            {"tanh", {over<Tanh>, over_wide<Tanh>}}};

void run(const std::string& name, const py::buffer& x, const py::buffer& out, bool wide)
{
    const ValueLoop loop = value_loop(name, wide);
    const py::buffer_info from = floats(x), to = floats(out, true);
    require(from.size == to.size, "expected as many values in the result as in the operand");
    py::gil_scoped_release unlocked;
    loop(static_cast<const float*>(from.ptr), static_cast<float*>(to.ptr), to.size);
}

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
    const NormLoop loop = norm_loop(wide);
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
    const GradientLoop loop = wide && has_wide ? gradient_rows_wide : gradient_rows;
    py::gil_scoped_release unlocked;
    loop(told, static_cast<const float*>(slopes.ptr), static_cast<const float*>(from.ptr),
         static_cast<float*>(to.ptr));
}

} // namespace

ValueLoop value_loop(const std::string& name, bool wide)
{
    const auto found = functions.find(name);
    if (found == functions.end())
        throw py::key_error(name);
    return wide && has_wide ? found->second.wide : found->second.plain;
}

NormLoop norm_loop(bool wide) { return wide && has_wide ? norm_rows_wide : norm_rows; }

PYBIND11_MODULE(loops, m)
{
    m.doc() = "What takes numpy many passes over float32, in one; operands are contiguous, and a "
              "result may lie where the first one does. Not wide: as processors without wider "
              "vectors do it.";
    m.def("run", &run, py::arg("name"), py::arg("x"), py::arg("out"), py::arg("wide") = true);
    m.def("norm", &norm, py::arg("x"), py::arg("scale"), py::arg("shift"), py::arg("out"),
          py::arg("columns"), py::arg("eps"), py::arg("centered"), py::arg("wide") = true);
    m.def("norm_gradient", &norm_gradient, py::arg("g"), py::arg("x"), py::arg("scale"),
          py::arg("out"), py::arg("columns"), py::arg("eps"), py::arg("centered"),
          py::arg("wide") = true);
    add_conv(m);
    add_integer(m);
    add_packed(m);
    add_program(m);
    add_recurrent(m);
    add_repack(m);
    add_resample(m);
    add_rounded(m);
    add_texts(m);
}
