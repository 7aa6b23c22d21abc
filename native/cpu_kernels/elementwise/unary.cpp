// Unary functions that take numpy many passes:
//
//   unary("gelu", x, out)   out[i] = gelu(x[i])
//
// Plain loops that compilers vectorize. vksched/ops/elementwise/special.py has the accuracy of the
// formulas. NaN propagates. Examples: tests/ops/native/test_loops.py.
#include "cpu_kernels/arrays.hpp"
#include "cpu_kernels/elementwise/exponential.hpp"
#include "cpu_kernels/vectors.hpp"

#include <cmath>
#include <limits>
#include <map>
#include <string>

namespace {

struct Erf {
    INLINED float of(float x)
    {
        constexpr float numerator[] = {1.1283791461606922f, 0.19040729479621846f,
                                   0.05274880097581463f, 0.003765642460680702f,
                                   0.0002848814857589479f, 2.050057456119928e-06f};
        constexpr float denominator[] = {1.0f, 0.5020768126914162f, 0.11410942442046797f,
                                   0.01496927111307666f, 0.0011625382191661356f,
                                   3.809134100559774e-05f};
        const float z = clipped(x, 3.92f), square = z * z;
        return clipped(z * polynomial(numerator, square) / polynomial(denominator, square), 1.0f);
    }
};

struct Gelu {
    // 2 (1 - Phi(2 h)) exp(2 h^2)
    INLINED float tail(float h)
    {
        constexpr float numerator[] = {23.61601338f, 34.08407392f, 22.45761536f, 6.38226608f};
        constexpr float denominator[] = {23.61602178f, 71.76895394f, 89.76562072f, 56.2526436f,
                                         16.0f};
        return polynomial(numerator, h) / polynomial(denominator, h);
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

// Computed for -|x|; the derivatives at x and -x add up to 1.
struct GeluBackward {
    INLINED float of(float x)
    {
        const float size = std::fabs(x), h = clipped(0.5f * size, 1e4f);
        const float tail = 0.5f * Gelu::tail(h) - 0.39894228f * 2.0f * h;
        const float part = tail * exponential(-2.0f * h * h);
        return x > 0 ? 1.0f - part : x == x ? part : x;
    }
};

struct GeluTanhBackward {
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

// x = 2**n m with m in [sqrt(0.5), sqrt(2)); log(m) = 2 s (1 + s**2 / 3 + s**4 / 5 ...) with s = (m
// - 1) / (m + 1), to a relative error of 2e-9.
struct Log {
    INLINED float of(float x)
    {
        constexpr float p[] = {1.0f, 1.0f / 3, 1.0f / 5, 1.0f / 7, 1.0f / 9};
        constexpr float infinite = std::numeric_limits<float>::infinity();
        const bool small = x < 0x1p-126f; // subnormal
        const int32_t bits = bit_cast<int32_t>(small ? x * 0x1p24f : x);
        // minus the bits of sqrt(0.5); unsigned, because negative numbers would overflow
        const int32_t n = static_cast<int32_t>(static_cast<uint32_t>(bits) - 0x3f3504f3u) >> 23;
        const float m =
            bit_cast<float>(static_cast<int32_t>(bits - (static_cast<uint32_t>(n) << 23)));
        const float s = (m - 1.0f) / (m + 1.0f), whole = static_cast<float>(small ? n - 24 : n);
        // log(2) in two parts, as in exponential()
        const float sum = 2.0f * s * polynomial(p, s * s) + whole * -2.12194440e-4f;
        const float beyond = x > 0    ? x
                             : x == 0 ? -infinite
                                      : std::numeric_limits<float>::quiet_NaN();
        return x > 0 && x < infinite ? whole * 0.693359375f + sum : beyond;
    }
};

struct Sigmoid {
    INLINED float of(float x) { return 1.0f / (1.0f + exponential(-x)); }
};

struct Silu {
    INLINED float of(float x) { return x / (1.0f + exponential(-x)); }
};

template <class F>
INLINED void each_value(const float* x, float* out, size_t count)
{
#pragma GCC ivdep
    for (size_t at = 0; at < count; ++at)
        out[at] = F::of(x[at]);
}

template <class F>
void apply(const float* x, float* out, size_t count)
{
    each_value<F>(x, out, count);
}

#ifdef TARGET_AVX2
template <class F>
TARGET_AVX2 void apply_avx2(const float* x, float* out, size_t count)
{
    each_value<F>(x, out, count);
}
#else
template <class F>
constexpr UnaryKernel apply_avx2 = apply<F>;
#endif

struct Versions {
    UnaryKernel baseline, avx2;
};

const std::map<std::string, Versions> functions{
    {"exp", {apply<Exp>, apply_avx2<Exp>}},
    {"erf", {apply<Erf>, apply_avx2<Erf>}},
    {"gelu", {apply<Gelu>, apply_avx2<Gelu>}},
    {"gelu_tanh", {apply<GeluTanh>, apply_avx2<GeluTanh>}},
    {"gelu_backward", {apply<GeluBackward>, apply_avx2<GeluBackward>}},
    {"gelu_tanh_backward", {apply<GeluTanhBackward>, apply_avx2<GeluTanhBackward>}},
    {"log", {apply<Log>, apply_avx2<Log>}},
    {"sigmoid", {apply<Sigmoid>, apply_avx2<Sigmoid>}},
    {"silu", {apply<Silu>, apply_avx2<Silu>}},
    {"tanh", {apply<Tanh>, apply_avx2<Tanh>}}};

void unary(const std::string& name, const py::buffer& x, const py::buffer& out, bool wide)
{
    const UnaryKernel kernel = unary_kernel(name, wide);
    const py::buffer_info from = floats(x), to = floats(out, true);
    require(from.size == to.size, "expected as many values in the result as in the operand");
    py::gil_scoped_release unlocked;
    kernel(static_cast<const float*>(from.ptr), static_cast<float*>(to.ptr), to.size);
}

} // namespace

UnaryKernel unary_kernel(const std::string& name, bool wide)
{
    const auto entry = functions.find(name);
    if (entry == functions.end())
        throw KeyError(name);
    return wide && has_avx2() ? entry->second.avx2 : entry->second.baseline;
}

void add_unary(py::module_& m)
{
    m.def("unary", &unary, py::arg("name"), py::arg("x"), py::arg("out"), py::arg("wide") = true);
}
