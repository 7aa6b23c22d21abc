// Functions of one 32-bit word. Each variant defines the name of its op and the type of its operand, and holds that
// function only: drivers take a hundred times longer over a kernel with all of them.
#include "float_math.glsl"
#include "int_math.glsl"
#include "exp_math.glsl"
#include "trig_math.glsl"

// Keeps the sign of a zero, and returns what has no fraction, Inf and NaN as it is.
uint rounded(uint word, float whole) {
    const uint magnitude = word & 0x7fffffffu;
    return magnitude >= 0x4b000000u ? word : floatBitsToUint(with_sign(whole, uintBitsToFloat(word)));
}

#ifdef ROUND_FLOAT_FLOAT32
// Rounds to fewer digits, of two results as near to the even one. how: in bits 0..7 the digits behind the point, in bits
// 8..15 the least exponent of a normal result, plus 127, in bits 16.. what is beyond the largest: 0 that one, 1 Inf, 2 NaN.
uint round_float(uint word, uint how, uint largest) {
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
#endif

// alpha_word, beta_word: the op's parameters, of the type of its operand; low and high of a clip.
uint apply_unary(uint word, uint alpha_word, uint beta_word) {
    const float x = uintBitsToFloat(word);
    const float alpha = uintBitsToFloat(alpha_word);
    const float beta = uintBitsToFloat(beta_word);
    const int i = int(word);
    const uint magnitude = word & 0x7fffffffu;
#if defined(SQRT_FLOAT32)
    return floatBitsToUint(safe_sqrt(x));
#elif defined(RSQRT_FLOAT32)
    return floatBitsToUint(safe_rsqrt(x));
#elif defined(EXP_FLOAT32)
    return floatBitsToUint(fine_exp(x));
#elif defined(EXPM1_FLOAT32)
    return floatBitsToUint(safe_expm1(x));
#elif defined(LOG_FLOAT32)
    return floatBitsToUint(safe_log(x));
#elif defined(LOG1P_FLOAT32)
    return floatBitsToUint(safe_log1p(x));
#elif defined(LOG2_FLOAT32)
    return floatBitsToUint(safe_log2(x));
#elif defined(LOG10_FLOAT32)
    return floatBitsToUint(safe_log10(x));
#elif defined(SIN_FLOAT32)
    return floatBitsToUint(safe_sin(x));
#elif defined(COS_FLOAT32)
    return floatBitsToUint(safe_cos(x));
#elif defined(TAN_FLOAT32)
    return floatBitsToUint(safe_tan(x));
#elif defined(ASIN_FLOAT32)
    return floatBitsToUint(safe_asin(x));
#elif defined(ACOS_FLOAT32)
    return floatBitsToUint(safe_acos(x));
#elif defined(ATAN_FLOAT32)
    return floatBitsToUint(safe_atan(x));
#elif defined(SINH_FLOAT32)
    return floatBitsToUint(safe_sinh(x));
#elif defined(COSH_FLOAT32)
    return floatBitsToUint(safe_cosh(x));
#elif defined(TANH_FLOAT32)
    return floatBitsToUint(safe_tanh(x));
#elif defined(ASINH_FLOAT32)
    return floatBitsToUint(safe_asinh(x));
#elif defined(ACOSH_FLOAT32)
    return floatBitsToUint(safe_acosh(x));
#elif defined(ATANH_FLOAT32)
    return floatBitsToUint(safe_atanh(x));
#elif defined(ERF_FLOAT32)
    return floatBitsToUint(safe_erf(x));
#elif defined(ERFC_FLOAT32)
    return floatBitsToUint(safe_erfc(x));
#elif defined(RECIPROCAL_FLOAT32)
    if (is_inf(x)) return word & 0x80000000u;
    return magnitude == 0u ? word | 0x7f800000u : floatBitsToUint(1.0 / x);
#elif defined(SQUARE_FLOAT32)
    return floatBitsToUint(x * x);
#elif defined(SQUARE_INT32)
    return word * word;
#elif defined(SIGN_FLOAT32)
    return is_nan(x) ? word : magnitude == 0u ? 0u : (word & 0x80000000u) | 0x3f800000u;
#elif defined(SIGN_INT32)
    return uint(sign(i));
#elif defined(SIGN_UINT32)
    return min(word, 1u);
#elif defined(SIGNBIT_FLOAT32)
    return word >> 31;
#elif defined(ISNAN_FLOAT32)
    return uint(is_nan(x));
#elif defined(ISINF_FLOAT32)
    return uint(is_inf(x));
#elif defined(ISFINITE_FLOAT32)
    return uint(magnitude < 0x7f800000u);
#elif defined(ISNAN_INT32)
    return 0u;
#elif defined(ISFINITE_INT32)
    return 1u;
#elif defined(CEIL_FLOAT32)
    return rounded(word, ceil(x));
#elif defined(FLOOR_FLOAT32)
    return rounded(word, floor(x));
#elif defined(TRUNC_FLOAT32)
    return rounded(word, trunc(x));
#elif defined(ROUND_FLOAT32)
    return rounded(word, roundEven(x));
#elif defined(ROUND_FLOAT_FLOAT32)
    return round_float(word, alpha_word, beta_word);
#elif defined(RELU_FLOAT32)
    return is_nan(x) || x > 0.0 ? word : 0u;
#elif defined(LEAKY_RELU_FLOAT32)
    return is_negative(word) ? floatBitsToUint(alpha * x) : word;
#elif defined(THRESHOLDED_RELU_FLOAT32)
    return is_nan(x) || x > alpha ? word : 0u;
#elif defined(ELU_FLOAT32)
    return is_negative(word) ? floatBitsToUint(alpha * safe_expm1(x)) : word;
#elif defined(SELU_FLOAT32)
    return floatBitsToUint(beta * (is_negative(word) ? alpha * safe_expm1(x) : x));
#elif defined(CELU_FLOAT32)
    const float bent = alpha * safe_expm1(x / alpha);
    return is_nan(x) ? word : floatBitsToUint((x > 0.0 ? x : 0.0) + (bent < 0.0 ? bent : 0.0));
#elif defined(GELU_FLOAT32)
    return floatBitsToUint(gelu_erf(x));
#elif defined(GELU_TANH_FLOAT32)
    return floatBitsToUint(gelu_tanh(x));
#elif defined(SILU_FLOAT32)
    return floatBitsToUint(x * sigmoid(x));
#elif defined(SIGMOID_FLOAT32)
    return floatBitsToUint(sigmoid(x));
#elif defined(HARD_SIGMOID_FLOAT32)
    return floatBitsToUint(safe_max(0.0, safe_min(1.0, alpha * x + beta)));
#elif defined(HARD_SWISH_FLOAT32)
    return floatBitsToUint(x * safe_max(0.0, safe_min(1.0, (x + 3.0) * (1.0 / 6.0))));
#elif defined(MISH_FLOAT32)
    return floatBitsToUint(mish(x));
#elif defined(SOFTPLUS_FLOAT32)
    return floatBitsToUint(softplus(x));
#elif defined(SOFTSIGN_FLOAT32)
    if (is_inf(x)) return floatBitsToUint(NOT_A_NUMBER); // inf / inf
    return floatBitsToUint(abs(x) > 1e9 ? with_sign(1.0, x) : x / (1.0 + abs(x)));
#elif defined(CLIP_FLOAT32)
    return floatBitsToUint(safe_min(safe_max(x, alpha), beta));
#elif defined(CLIP_INT32)
    return uint(min(max(i, int(alpha_word)), int(beta_word)));
#elif defined(CLIP_UINT32)
    return min(max(word, alpha_word), beta_word);
#elif defined(NEG_FLOAT32)
    return word ^ 0x80000000u;
#elif defined(ABS_FLOAT32)
    return magnitude;
#elif defined(NEG_INT32)
    return 0u - word;
#elif defined(ABS_INT32)
    return i < 0 ? 0u - word : word;
#elif defined(RELU_INT32)
    return i > 0 ? word : 0u;
#elif defined(BITWISE_INVERT_INT32)
    return ~word;
#elif defined(LOGICAL_NOT_BOOL)
    return word ^ 1u;
#elif defined(FLOAT32_TO_INT32)
    return uint(float_to_int(x));
#elif defined(FLOAT32_TO_UINT32)
    return float_to_uint(x);
#elif defined(FLOAT32_TO_BOOL)
    return uint(magnitude != 0u);
#elif defined(INT32_TO_FLOAT32)
    return floatBitsToUint(float(i));
#elif defined(UINT32_TO_FLOAT32)
    return floatBitsToUint(float(word));
#elif defined(INT32_TO_BOOL)
    return uint(word != 0u);
#elif defined(BOOL_TO_FLOAT32)
    return word != 0u ? 0x3f800000u : 0u;
#elif defined(SAME_WORD)
    return word;
#endif
}
