// The exponential that loops over float32 share, and what several of them make of it.
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

INLINED float clipped(float x, float end)
{
    const float below = x > end ? end : x; // of NaN neither holds
    return below < -end ? -end : below;
}

// exp(x) = 2**n exp(r) with r within log(2) / 2, where exp(r) = 1 + r + r**2 p(r) to a relative
// error of 3e-9, by iterated weighted least squares; 0 and infinity beyond float32.
INLINED float exponential(float x)
{
    constexpr float p[] = {0.499999934f, 0.166665206f, 0.0416683881f, 0.0083687169f,
                           0.00138145984f};
    constexpr float shift = 12582912.0f; // 1.5 * 2**23: the last bits of a sum are an integer
    x = clipped(x, 105.0f);
    const float shifted = x * 1.44269504f + shift;
    const float whole = shifted - shift;
    // log(2) in two parts, the first short enough for an exact product
    const float r = (x - whole * 0.693359375f) - whole * -2.12194440e-4f;
    const float part = r + r * r * polynomial(p, r);
    // modulo 2**32, as of NaN it is anything
    const int32_t n = static_cast<int32_t>(bits_as<uint32_t>(shifted) - bits_as<uint32_t>(shift));
    const int32_t half = n >> 1; // twice, as 2**n itself may lie beyond float32
    const float once = bits_as<float>(static_cast<uint32_t>(half + 127) << 23);
    const float again = bits_as<float>(static_cast<uint32_t>(n - half + 127) << 23);
    return (1.0f + part) * once * again;
}

// x + x**3 p(x**2) near 0, to a relative error of 3e-9 by iterated weighted least squares.
struct Tanh {
    INLINED float of(float x)
    {
        constexpr float p[] = {-0.333332986f, 0.133319244f, -0.0537838303f, 0.0207959674f,
                               -0.00589515269f};
        const float q = x * x, near = x + x * q * polynomial(p, q);
        const float far = 1.0f - 2.0f / (1.0f + exponential(2.0f * x));
        return std::copysign(std::fabs(x) < 0.6f ? near : far, x); // -0 stays
    }
};
