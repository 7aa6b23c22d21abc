// The exponential of float32, and functions that are built on it.
#pragma once

#include "cpu_kernels/operands.hpp"

#include <cmath>

template <size_t N>
INLINED float polynomial(const float (&coefficients)[N], float x)
{
    float sum = coefficients[N - 1];
    for (size_t at = N - 1; at > 0; --at)
        sum = sum * x + coefficients[at - 1];
    return sum;
}

INLINED float clipped(float x, float limit)
{
    const float below = x > limit ? limit : x; // both comparisons are false for NaN
    return below < -limit ? -limit : below;
}

// exp(x) = 2**n exp(r) with |r| <= log(2) / 2, where exp(r) = 1 + r + r**2 p(r) to a relative error
// of 3e-9 (iteratively reweighted least squares). Overflows to infinity and underflows to 0.
INLINED float exponential(float x)
{
    constexpr float p[] = {0.499999934f, 0.166665206f, 0.0416683881f, 0.0083687169f,
                           0.00138145984f};
    constexpr float shift = 12582912.0f; // 1.5 * 2**23: rounds to an integer in the low bits
    x = clipped(x, 105.0f);
    const float shifted = x * 1.44269504f + shift;
    const float whole = shifted - shift;
    // log(2) in two parts: the product with the first, short one is exact
    const float r = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;
    const float part = r + r * r * polynomial(p, r);
    // modulo 2**32: the value is arbitrary for NaN
    const int32_t n = static_cast<int32_t>(bit_cast<uint32_t>(shifted) - bit_cast<uint32_t>(shift));
    const int32_t half = n >> 1; // two factors: 2**n may exceed float32
    const float once = bit_cast<float>(static_cast<uint32_t>(half + 127) << 23);
    const float again = bit_cast<float>(static_cast<uint32_t>(n - half + 127) << 23);
    return (1.0f + part) * once * again;
}

// x + x**3 p(x**2) near 0, to a relative error of 3e-9 (iteratively reweighted least squares).
struct Tanh {
    INLINED float of(float x)
    {
        constexpr float p[] = {-0.333332986f, 0.133319244f, -0.0537838303f, 0.0207959674f,
                               -0.00589515269f};
        const float q = x * x, near = x + x * q * polynomial(p, q);
        const float far = 1.0f - 2.0f / (1.0f + exponential(2.0f * x));
        return std::copysign(std::fabs(x) < 0.6f ? near : far, x); // keeps -0
    }
};
