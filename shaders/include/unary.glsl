// Functions of one 32-bit word, by the name of the op and the type of its operand. A module holds those that it calls and
// no others: drivers take a hundred times longer over a kernel with all of them.
#include "float_math.glsl"
#include "int_math.glsl"
#include "exp_math.glsl"
#include "trig_math.glsl"

// Keeps the sign of a zero, and returns what has no fraction, Inf and NaN as it is.
uint rounded(uint word, float whole) {
    const uint magnitude = word & 0x7fffffffu;
    const uint made = floatBitsToUint(with_sign(whole, uintBitsToFloat(word))); // apart, as in leaky_relu
    return magnitude >= 0x4b000000u ? word : made;
}

// Rounds to fewer digits, of two results as near to the even one. how: in bits 0..7 the digits behind the point, in bits
// 8..15 the least exponent of a normal result, plus 127, in bits 16.. what is beyond the largest: 0 that one, 1 Inf, 2 NaN.
uint reduce_precision(uint word, uint how, uint largest) {
    const uint magnitude = word & 0x7fffffffu;
    const uint digits = how & 0xffu;
    const uint least = how >> 8 & 0xffu;
    if (magnitude > 0x7f800000u) {
        return word;
    }
    uint done;
    if (magnitude >> 23 >= least || least <= 1u) {  // by bits: a carry goes into the exponent
        const uint unit = 1u << (23u - digits);
        const uint odd = magnitude / unit & 1u;
        done = magnitude + (unit / 2u - 1u + odd) & ~(unit - 1u);
    } else {  // a multiple of the least step, a power of two
        const float steps = roundEven(uintBitsToFloat(magnitude) * uintBitsToFloat(254u + digits - least << 23));
        done = floatBitsToUint(steps * uintBitsToFloat(least - digits << 23));
    }
    const uint beyond = how >> 16;
    if (done > largest) {
        done = beyond == 0u ? largest : beyond == 1u ? 0x7f800000u : 0x7fc00000u;
    }
    return done | (word & 0x80000000u);
}

// alpha_word, beta_word: the op's parameters, of the type of its operand; low and high of a clip.
uint sqrt_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(safe_sqrt(x));
}

uint rsqrt_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(safe_rsqrt(x));
}

uint exp_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(fine_exp(x));
}

uint expm1_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(safe_expm1(x));
}

uint log_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(safe_log(x));
}

uint log1p_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(safe_log1p(x));
}

uint log2_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(safe_log2(x));
}

uint log10_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(safe_log10(x));
}

uint sin_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(safe_sin(x));
}

uint cos_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(safe_cos(x));
}

uint tan_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(safe_tan(x));
}

uint asin_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(safe_asin(x));
}

uint acos_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(safe_acos(x));
}

uint atan_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(safe_atan(x));
}

uint sinh_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(safe_sinh(x));
}

uint cosh_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(safe_cosh(x));
}

uint tanh_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(safe_tanh(x));
}

uint asinh_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(safe_asinh(x));
}

uint acosh_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(safe_acosh(x));
}

uint atanh_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(safe_atanh(x));
}

uint erf_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(safe_erf(x));
}

uint erfc_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(safe_erfc(x));
}

uint reciprocal_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    const uint magnitude = word & 0x7fffffffu;
    if (is_inf(x)) return word & 0x80000000u;
    return magnitude == 0u ? word | 0x7f800000u : floatBitsToUint(1.0 / x);
}

uint square_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(x * x);
}

uint square_int32(uint word, uint alpha_word, uint beta_word) {
    return word * word;
}

uint sign_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    const uint magnitude = word & 0x7fffffffu;
    return is_nan(x) ? word : magnitude == 0u ? 0u : (word & 0x80000000u) | 0x3f800000u;
}

uint sign_int32(uint word, uint alpha_word, uint beta_word) {
    const int i = int(word);
    return uint(sign(i));
}

uint sign_uint32(uint word, uint alpha_word, uint beta_word) {
    return min(word, 1u);
}

uint signbit_float32(uint word, uint alpha_word, uint beta_word) {
    return word >> 31;
}

uint isnan_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return uint(is_nan(x));
}

uint isinf_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return uint(is_inf(x));
}

uint isfinite_float32(uint word, uint alpha_word, uint beta_word) {
    const uint magnitude = word & 0x7fffffffu;
    return uint(magnitude < 0x7f800000u);
}

uint isnan_int32(uint word, uint alpha_word, uint beta_word) {
    return 0u;
}

uint isfinite_int32(uint word, uint alpha_word, uint beta_word) {
    return 1u;
}

uint ceil_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return rounded(word, ceil(x));
}

uint floor_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return rounded(word, floor(x));
}

uint trunc_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return rounded(word, trunc(x));
}

uint round_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return rounded(word, roundEven(x));
}

uint reduce_precision_float32(uint word, uint alpha_word, uint beta_word) {
    return reduce_precision(word, alpha_word, beta_word);
}

uint relu_float32(uint word, uint alpha_word, uint beta_word) {
    return mix(word, 0u, int(word) < -0x7fffff); // of that sign and no NaN
}

uint leaky_relu_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    const float alpha = uintBitsToFloat(alpha_word);
    const uint bent = floatBitsToUint(alpha * x); // apart: branches in a row take SwiftShader exponential time to compile
    return mix(word, bent, is_negative(word));
}

uint thresholded_relu_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    const float alpha = uintBitsToFloat(alpha_word);
    return mix(mix(0u, word, x > alpha), word, is_nan(x));
}

uint elu_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    const float alpha = uintBitsToFloat(alpha_word);
    return mix(word, floatBitsToUint(alpha * safe_expm1(x)), is_negative(word));
}

uint selu_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    const float alpha = uintBitsToFloat(alpha_word);
    const float beta = uintBitsToFloat(beta_word);
    return floatBitsToUint(beta * mix(x, alpha * safe_expm1(x), is_negative(word)));
}

uint celu_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    const float alpha = uintBitsToFloat(alpha_word);
    const float bent = alpha * safe_expm1(x / alpha);
    return mix(floatBitsToUint(mix(0.0, x, x > 0.0) + mix(0.0, bent, bent < 0.0)), word, is_nan(x));
}

uint gelu_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(gelu_erf(x));
}

uint gelu_tanh_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(gelu_tanh(x));
}

uint gelu_backward_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(gelu_erf_slope(x));
}

uint gelu_tanh_backward_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(gelu_tanh_backward(x));
}

uint silu_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(x * sigmoid(x));
}

uint sigmoid_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(sigmoid(x));
}

uint hard_sigmoid_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    const float alpha = uintBitsToFloat(alpha_word);
    const float beta = uintBitsToFloat(beta_word);
    const float line = alpha * x + beta;
    return floatBitsToUint(mix(clamp(line, 0.0, 1.0), line, is_nan(line)));
}

uint hard_swish_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(x * clamp((x + 3.0) * (1.0 / 6.0), 0.0, 1.0)); // NaN stays NaN, whatever the clamp makes of it
}

uint mish_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(mish(x));
}

uint softplus_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return floatBitsToUint(softplus(x));
}

uint softsign_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    if (is_inf(x)) return floatBitsToUint(NOT_A_NUMBER); // inf / inf
    return floatBitsToUint(abs(x) > 1e9 ? with_sign(1.0, x) : x / (1.0 + abs(x)));
}

uint clip_float32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    const float alpha = uintBitsToFloat(alpha_word);
    const float beta = uintBitsToFloat(beta_word);
    return floatBitsToUint(mix(min(max(x, alpha), beta), x, is_nan(x)));
}

uint clip_int32(uint word, uint alpha_word, uint beta_word) {
    const int i = int(word);
    return uint(min(max(i, int(alpha_word)), int(beta_word)));
}

uint clip_uint32(uint word, uint alpha_word, uint beta_word) {
    return min(max(word, alpha_word), beta_word);
}

uint neg_float32(uint word, uint alpha_word, uint beta_word) {
    return word ^ 0x80000000u;
}

uint abs_float32(uint word, uint alpha_word, uint beta_word) {
    const uint magnitude = word & 0x7fffffffu;
    return magnitude;
}

uint neg_int32(uint word, uint alpha_word, uint beta_word) {
    return 0u - word;
}

uint abs_int32(uint word, uint alpha_word, uint beta_word) {
    const int i = int(word);
    return i < 0 ? 0u - word : word;
}

uint relu_int32(uint word, uint alpha_word, uint beta_word) {
    const int i = int(word);
    return i > 0 ? word : 0u;
}

uint bitwise_invert_int32(uint word, uint alpha_word, uint beta_word) {
    return ~word;
}

uint logical_not_bool(uint word, uint alpha_word, uint beta_word) {
    return word ^ 1u;
}

uint float32_to_int32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return uint(float_to_int(x));
}

uint float32_to_uint32(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    return float_to_uint(x);
}

uint float32_to_bool(uint word, uint alpha_word, uint beta_word) {
    const uint magnitude = word & 0x7fffffffu;
    return uint(magnitude != 0u);
}

uint int32_to_float32(uint word, uint alpha_word, uint beta_word) {
    const int i = int(word);
    return floatBitsToUint(float(i));
}

uint uint32_to_float32(uint word, uint alpha_word, uint beta_word) {
    return floatBitsToUint(float(word));
}

uint int32_to_bool(uint word, uint alpha_word, uint beta_word) {
    return uint(word != 0u);
}

uint bool_to_float32(uint word, uint alpha_word, uint beta_word) {
    return word != 0u ? 0x3f800000u : 0u;
}

uint same_word(uint word, uint alpha_word, uint beta_word) {
    return word;
}
