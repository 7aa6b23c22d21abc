// Float functions with numpy's results at the edges, where GLSL's own are undefined or imprecise.
// NaN is tested by its bits: drivers may assume that isnan() is false. Nor does a choice by a comparison keep NaN everywhere:
// NVIDIA's compiler makes a maximum of `x < 0.0 ? 0.0 : x`, and a saturated sum of one cut to 0..1 (driver 580.159, H100). Most choose between values, not between branches:
// SwiftShader goes through both sides of each, with masks for all that they change, and takes seconds to compile some in a row.
#ifndef FLOAT_MATH
#define FLOAT_MATH

#define INFINITY uintBitsToFloat(0x7f800000u)
#define NOT_A_NUMBER uintBitsToFloat(0x7fc00000u)

// Words are compared as signed where they may be: CPU drivers have no other comparison of vectors.
bool is_nan(float x) { return int(floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000; }

// Below 0, which neither -0 nor NaN is.
bool is_negative(uint word) { return word - 0x80000001u < 0x7f800000u; }

bool is_inf(float x) { return (floatBitsToUint(x) & 0x7fffffffu) == 0x7f800000u; }

// By bits, as drivers may take a denormal for 0. A denormal is its word times 2^-149.
bool is_zero(float x) { return (floatBitsToUint(x) & 0x7fffffffu) == 0u; }

// -0 too.
bool has_sign_or_nan(float x) { return floatBitsToUint(x) > 0x7f800000u; }

bool is_denormal(float x) { return (floatBitsToUint(x) & 0x7f800000u) == 0u; }

const float TWO_TO_75_INVERSE = 2.6469779601696886e-23;

float safe_exp(float x) {
    const float made = mix(exp(x), INFINITY, x > 88.8);
    return mix(mix(made, 0.0, x < -104.0), x, is_nan(x));
}

// exponent and mantissa: x = 2^exponent * mantissa, mantissa in sqrt(1/2)..sqrt(2), for finite x > 0, denormals too.
float split_exponent(float x, out float mantissa) {
    const uint given = floatBitsToUint(x);
    const bool tiny = given < 0x00800000u;
    const uint word = mix(given, floatBitsToUint(float(int(given))), tiny);
    const float whole = uintBitsToFloat((word & 0x007fffffu) | 0x3f800000u);
    const bool upper = whole > 1.41421356;
    mantissa = mix(whole, 0.5 * whole, upper);
    const float exponent = float(int(word & 0x7f800000u)) * 1.1920928955078125e-7; // 2^-23
    return exponent - mix(127.0, 276.0, tiny) + mix(0.0, 1.0, upper);
}

// log((1 + s) / (1 - s)) by the series of atanh, for |s| < 0.18.
float log_series(float s) {
    const float q = s * s;
    return 2.0 * s * (1.0 + q * (1.0 / 3.0 + q * (1.0 / 5.0 + q * (1.0 / 7.0 + q * (1.0 / 9.0)))));
}

// log of a mantissa: GLSL's own has an absolute error only, and none left near 1.
float log_mantissa(float mantissa) { return log_series((mantissa - 1.0) / (mantissa + 1.0)); }

// log(2) in two parts, the first of few bits, so that its product is exact.
float log_of_parts(float exponent, float log_rest) { return exponent * 0.693359375 + (exponent * -2.12194440e-4 + log_rest); }

// A logarithm of x that was computed as if x were finite and above 0.
float log_or_edge(float made, float x) {
    const float known = mix(made, x, is_inf(x));
    return mix(mix(known, NOT_A_NUMBER, has_sign_or_nan(x)), -INFINITY, is_zero(x));
}

float safe_log(float x) {
    float mantissa;
    const float exponent = split_exponent(x, mantissa);
    return log_or_edge(log_of_parts(exponent, log_mantissa(mantissa)), x);
}

float safe_sqrt(float x) {
    const bool tiny = is_denormal(x);
    const float root = sqrt(mix(x, 2.0 * float(int(floatBitsToUint(x))), tiny)) * mix(1.0, TWO_TO_75_INVERSE, tiny);
    const float known = mix(root, x, is_inf(x));
    return mix(mix(known, NOT_A_NUMBER, has_sign_or_nan(x)), x, is_zero(x));
}

float safe_rsqrt(float x) {
    const bool tiny = is_denormal(x);
    const float scale = mix(1.0, 1.0 / TWO_TO_75_INVERSE, tiny);
    const float root = inversesqrt(mix(x, 2.0 * float(int(floatBitsToUint(x))), tiny)) * scale;
    const float known = mix(root, 0.0, is_inf(x));
    const float infinite = uintBitsToFloat(floatBitsToUint(x) | 0x7f800000u); // of the sign of x
    return mix(mix(known, NOT_A_NUMBER, has_sign_or_nan(x)), infinite, is_zero(x));
}

// Near 0 a Taylor series, as 1 - exp loses digits there; elsewhere by exp(-2|x|), which cannot overflow.
float safe_tanh(float x) {
    const float q = x * x;
    const float p = 1.0 + q * (-1.0 / 3.0 + q * (2.0 / 15.0 + q * (-17.0 / 315.0 + q * 62.0 / 2835.0)));
    const float e = safe_exp(-2.0 * abs(x));
    const float t = (1.0 - e) / (1.0 + e);
    return mix(mix(mix(t, -t, x < 0.0), x * p, abs(x) < 0.25), x, is_nan(x));
}

float sigmoid(float x) {
    const float e = safe_exp(-abs(x));
    return mix(mix(1.0, e, x < 0.0) / (1.0 + e), x, is_nan(x));
}

// erfc(z) = t exp(fit - z^2) for z >= 0 and t = 1 / (1 + z / 2), with a relative error of 1.2e-7.
// Source: the Chebyshev fit of Press et al., Numerical Recipes, 6.2.
float erfc_fit(float t) {
    float p = 0.17087277;
    p = -0.82215223 + t * p;
    p = 1.48851587 + t * p;
    p = -1.13520398 + t * p;
    p = 0.27886807 + t * p;
    p = -0.18628806 + t * p;
    p = 0.09678418 + t * p;
    p = 0.37409196 + t * p;
    p = 1.00002368 + t * p;
    return t * p - 1.26551223;
}

float erfc_positive(float z) {
    const float t = 1.0 / (1.0 + 0.5 * z);
    return t * safe_exp(erfc_fit(t) - z * z);
}

float safe_erf(float x) {
    const float a = abs(x);
    const float q = x * x;
    float p = -1.0 / 1320.0;
    p = 1.0 / 216.0 + q * p;
    p = -1.0 / 42.0 + q * p;
    p = 1.0 / 10.0 + q * p;
    p = -1.0 / 3.0 + q * p;
    const float near = 1.1283791671 * x * (1.0 + q * p);
    const float c = mix(erfc_positive(a), 0.0, a > 10.0);
    return mix(mix(mix(1.0 - c, c - 1.0, x < 0.0), near, a < 0.5), x, is_nan(x));
}

// x * Phi(x); for x < 0 by erfc, as 1 + erf loses digits there.
float gelu_erf(float x) {
    const float z = abs(x) * 0.70710678119;
    const float c = mix(erfc_positive(z), 0.0, z > 10.0);
    return mix(0.5 * x * mix(2.0 - c, c, x < 0.0), x, is_nan(x));
}

float gelu_tanh(float x) {
    return x * sigmoid(1.5957691216 * (x + 0.044715 * x * x * x)); // (1 + tanh(u)) / 2 = sigmoid(2 u)
}

// Phi(x) + x phi(x).
float gelu_erf_slope(float x) {
    const float z = abs(x) * 0.70710678119;
    const float c = mix(erfc_positive(z), 0.0, z > 10.0);
    const float near = clamp(x, -20.0, 20.0); // beyond them phi is 0
    const float slope = 0.5 * mix(2.0 - c, c, x < 0.0) + near * 0.39894228040 * safe_exp(-0.5 * near * near);
    return mix(slope, x, is_nan(x));
}

// s + s (1 - s) x u' for x s, s = sigmoid(u); beyond 20 it is flat. 1 - s by itself, as it has few digits where s is near 1.
float gelu_tanh_backward(float x) {
    const float z = min(abs(x), 20.0);
    const float q = 0.0713548162 * z * z;
    const float e = safe_exp(-z * (q + 1.5957691216));
    const float s = 1.0 / (1.0 + e);
    const float rise = s * z * (3.0 * q + 1.5957691216);
    return mix(mix(s + e * s * rise, e * s * (1.0 - rise), x < 0.0), x, is_nan(x));
}

// The larger one, and the smaller one; NaN if either is. Both are tested, as drivers may make a maximum, which knows no NaN, of a
// choice by a comparison.
float safe_max(float a, float b) { return mix(mix(mix(b, a, a > b), b, is_nan(b)), a, is_nan(a)); }

float safe_min(float a, float b) { return mix(mix(mix(b, a, a < b), b, is_nan(b)), a, is_nan(a)); }

// x to a whole power of at most 16 by squaring: exact where the products are.
float power_whole(float x, uint n) {
    float result = 1.0;
    for (uint bit = 0u; bit < 5u; ++bit) {
        if ((n >> bit & 1u) != 0u) result *= x;
        x *= x;
    }
    return result;
}

// As C's pow and numpy.power.
float safe_pow(float x, float y) {
    if (y == 0.0 || x == 1.0) return 1.0;
    if (is_nan(x) || is_nan(y)) return NOT_A_NUMBER;
    const float a = abs(x);
    const float h = abs(y);
    const bool whole = h >= 8388608.0 || floor(h) == h;
    const bool odd = h < 16777216.0 && whole && (uint(min(h, 16777216.0)) & 1u) == 1u;
    const bool negative = (floatBitsToUint(x) >> 31) != 0u;
    const float sign_of_result = negative && odd ? -1.0 : 1.0;
    if (is_inf(y)) {
        if (a == 1.0) return 1.0;
        return (a > 1.0) == (y > 0.0) ? INFINITY : 0.0;
    }
    if (a == 0.0 || is_inf(x)) return sign_of_result * ((a == 0.0) == (y > 0.0) ? 0.0 : INFINITY);
    if (negative && !whole) return NOT_A_NUMBER;
    if (whole && h <= 16.0) {
        const float p = power_whole(x, uint(h));
        if (y >= 0.0) return p;
        return abs(p) < 1.2e-38 ? power_whole(1.0 / x, uint(h)) : 1.0 / p; // a denormal may be taken for 0
    }
    if (y == 0.5) return safe_sqrt(x);
    float mantissa;
    const float exponent = split_exponent(a, mantissa);
    const float e = y * exponent + y * (log_mantissa(mantissa) * 1.44269504);
    if (e > 128.5) return sign_of_result * INFINITY;
    if (e < -150.0) return sign_of_result * 0.0;
    return sign_of_result * exp2(e);
}
#endif
