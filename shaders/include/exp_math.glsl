// Exponentials and logarithms that keep their digits near 0 and near 1, and what is made of them.
// GLSL's own exp may be off by 3 + 2 |x| units in the last place; these are off by two or so.
#ifndef EXP_MATH
#define EXP_MATH
#include "float_math.glsl"

#define LOG_2 0.69314718056

// Gives the sign of x to a magnitude that has no sign, or the sign of x already: so no bit of it is cleared. With a cleared bit
// this would be (a & c) | (b & ~c) for a constant c, and LLVM makes one instruction of that and a choice behind it on CPUs with
// AVX-512. Before July 2026 it took a wrong table of bits there (llvm-project issue 157929): on llvmpipe of Mesa 25.0.7 with
// LLVM 19.1.7, floor(1.5) in the last elements of a tensor was 6e-39.
float with_sign(float magnitude, float x) {
    return uintBitsToFloat(floatBitsToUint(magnitude) | (floatBitsToUint(x) & 0x80000000u));
}

// 2^n for -126 <= n <= 127. A product, as SwiftShader shifts lane by lane.
float power_of_two(int n) { return uintBitsToFloat(uint(n + 127) * 0x00800000u); }

// x = n log(2) + r with |r| < 0.35; returns exp(r) - 1.
float split_exp(float x, out int n) {
    precise float k = floor(x * 1.44269504 + 0.5);
    // log(2) in two parts, the first of few bits, so that its product is exact
    precise float r = x - k * 0.693359375;
    r = r + k * 2.12194440e-4;
    n = int(k);
    return r + r * r * (0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r * (1.0 / 720.0 + r / 5040.0)))));
}

// exp(x) * 2^shift, without overflow on the way.
float exp_shifted(float x, int shift) {
    int n;
    const float p = split_exp(clamp(x, -105.0, 90.0), n);
    n += shift;
    const int most = clamp(n, -125, 127); // 1 + p may be under 1
    const float made = (1.0 + p) * power_of_two(most) * power_of_two(n - most);
    return mix(mix(mix(made, INFINITY, x > 90.0), 0.0, x < -105.0), x, is_nan(x));
}

float fine_exp(float x) { return exp_shifted(x, 0); }

float safe_expm1(float x) {
    int n;
    const float p = split_exp(clamp(x, -18.0, 90.0), n);
    const int most = min(n, 126);
    const float scale = power_of_two(most);
    const float large = (1.0 + p) * scale * power_of_two(n - most); // 1 is less than its last digit
    const float made = mix(scale * p + (scale - 1.0), large, x > 20.0);
    return mix(mix(made, INFINITY, x > 90.0), x, any(bvec2(is_nan(x), abs(x) < 5e-8)));
}

float safe_log1p(float x) {
    float mantissa;
    const float exponent = split_exponent(1.0 + x, mantissa);
    const bool near = abs(x - 0.06) < 0.35;
    const float s = mix(mantissa - 1.0, x, near) / mix(mantissa + 1.0, 2.0 + x, near);
    const float made = log_or_edge(log_of_parts(mix(exponent, 0.0, near), log_series(s)), 1.0 + x);
    return mix(mix(made, x, abs(x) < 5e-8), NOT_A_NUMBER, is_nan(x));
}

float safe_log2(float x) {
    float mantissa;
    const float exponent = split_exponent(x, mantissa);
    return log_or_edge(exponent + log_mantissa(mantissa) * 1.44269504089, x);
}

float safe_log10(float x) {
    float mantissa;
    const float exponent = split_exponent(x, mantissa);
    // log10(2) in two parts, as log(2)
    return log_or_edge(exponent * 0.30078125 + (exponent * 2.48745663981e-4 + log_mantissa(mantissa) * 0.4342944819), x);
}

float safe_sinh(float x) {
    const float a = abs(x);
    if (is_nan(x) || is_inf(x) || a < 2e-4) return x;
    if (a > 9.0) return with_sign(exp_shifted(a, -1), x);
    const float t = safe_expm1(a);
    return with_sign(0.5 * (t + t / (t + 1.0)), x);
}

float safe_cosh(float x) {
    const float a = abs(x);
    return is_nan(x) ? x : exp_shifted(a, -1) + exp_shifted(-a, -1);
}

float safe_asinh(float x) {
    const float a = abs(x);
    if (is_nan(x) || is_inf(x) || a < 2e-4) return x;
    if (a > 1e9) return with_sign(safe_log(a) + LOG_2, x);
    return with_sign(safe_log1p(a + a * a / (1.0 + sqrt(1.0 + a * a))), x);
}

float safe_acosh(float x) {
    if (is_nan(x) || x < 1.0) return NOT_A_NUMBER;
    if (x > 1e9) return safe_log(x) + LOG_2;
    const float t = x - 1.0;
    return safe_log1p(t + safe_sqrt(t * (t + 2.0)));
}

float safe_atanh(float x) {
    const float a = abs(x);
    if (is_nan(x) || a > 1.0) return NOT_A_NUMBER;
    if (a < 2e-4) return x;
    return with_sign(a == 1.0 ? INFINITY : 0.5 * safe_log1p(2.0 * a / (1.0 - a)), x);
}

float softplus(float x) { return mix(mix(0.0, x, x > 0.0) + safe_log1p(fine_exp(-abs(x))), x, is_nan(x)); }

float safe_logaddexp(float a, float b) {
    if (is_nan(a) || is_nan(b)) return NOT_A_NUMBER;
    if (a == b) return a + LOG_2;
    const float larger = a > b ? a : b;
    return is_inf(larger) ? larger : larger + safe_log1p(fine_exp(-abs(a - b)));
}

// x tanh(softplus(x)); with e = exp(-|x|) a quotient that cannot overflow.
float mish(float x) {
    const float e = fine_exp(-abs(x));
    const float below = e * (e + 2.0);
    const float above = 1.0 + 2.0 * e;
    const float t = mix(above, below, x < 0.0) / mix(1.0 + 2.0 * e * (1.0 + e), below + 2.0, x < 0.0);
    return mix(x * t, x, is_nan(x));
}

// Where it is small the rounding of z^2 would cost digits: 12 bits of z are squared alone, which is exact.
float safe_erfc(float x) {
    if (is_nan(x)) return x;
    const float z = abs(x);
    if (z > 11.0) return x < 0.0 ? 2.0 : 0.0;
    const float t = 1.0 / (1.0 + 0.5 * z);
    const float head = uintBitsToFloat(floatBitsToUint(z) & 0xfffff000u);
    const float c = t * fine_exp((head - z) * (head + z) + erfc_fit(t)) * fine_exp(-head * head);
    return x < 0.0 ? 2.0 - c : c;
}

// Scaled by a power of two, so that no square leaves the range; an infinite side counts more than NaN.
float safe_hypot(float a, float b) {
    if (is_inf(a) || is_inf(b)) return INFINITY;
    if (is_nan(a) || is_nan(b)) return NOT_A_NUMBER;
    const float larger = max(abs(a), abs(b));
    const int shift = larger > 1e18 ? 66 : larger < 1e-15 ? -96 : 0;
    a *= power_of_two(-shift);
    b *= power_of_two(-shift);
    return safe_sqrt(a * a + b * b) * power_of_two(shift);
}
#endif
