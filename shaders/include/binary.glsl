// Functions of two 32-bit words, one for each variant, as in unary.glsl.
#include "float_math.glsl"
#include "int_math.glsl"
#include "exp_math.glsl"
#include "trig_math.glsl"
#include "remainder_math.glsl"

// The float next to a in the direction of b, by its bits.
uint next_after(uint a_word, uint b_word) {
    const uint a = a_word & 0x7fffffffu;
    const uint b = b_word & 0x7fffffffu;
    if (a > 0x7f800000u || b > 0x7f800000u) return 0x7fc00000u;
    if (a_word == b_word || (a | b) == 0u) return b_word;
    if (a == 0u) return (b_word & 0x80000000u) | 1u;
    const bool outwards = (a_word ^ b_word) >> 31 == 0u && a < b;
    return outwards ? a_word + 1u : a_word - 1u;
}

uint apply_binary(uint a_word, uint b_word) {
    const float a = uintBitsToFloat(a_word);
    const float b = uintBitsToFloat(b_word);
    const int i = int(a_word);
    const int j = int(b_word);
    const bool ordered = !is_nan(a) && !is_nan(b);
#if defined(ADD_FLOAT32)
    return floatBitsToUint(a + b);
#elif defined(SUB_FLOAT32)
    return floatBitsToUint(a - b);
#elif defined(MUL_FLOAT32)
    return floatBitsToUint(a * b);
#elif defined(DIV_FLOAT32)
    // Vulkan bounds the error of divisors to 2^126 only
    const float scale = abs(b) > 1.2676506e30 ? 3.7252903e-9 : 1.0;
    return floatBitsToUint(a * scale / (b * scale));
#elif defined(FLOOR_DIVIDE_FLOAT32)
    return floatBitsToUint(safe_floor_divide(a, b));
#elif defined(REMAINDER_FLOAT32)
    return floatBitsToUint(safe_remainder(a, b));
#elif defined(FMOD_FLOAT32)
    return floatBitsToUint(safe_fmod(a, b));
#elif defined(POW_FLOAT32)
    return floatBitsToUint(safe_pow(a, b));
#elif defined(MAXIMUM_FLOAT32)
    return floatBitsToUint(safe_max(a, b));
#elif defined(MINIMUM_FLOAT32)
    return floatBitsToUint(safe_min(a, b));
#elif defined(ATAN2_FLOAT32)
    return floatBitsToUint(safe_atan2(a, b));
#elif defined(HYPOT_FLOAT32)
    return floatBitsToUint(safe_hypot(a, b));
#elif defined(LOGADDEXP_FLOAT32)
    return floatBitsToUint(safe_logaddexp(a, b));
#elif defined(COPYSIGN_FLOAT32)
    return (a_word & 0x7fffffffu) | (b_word & 0x80000000u);
#elif defined(NEXTAFTER_FLOAT32)
    return next_after(a_word, b_word);
#elif defined(PRELU_FLOAT32)
    return is_negative(a_word) ? floatBitsToUint(a * b) : a_word;
#elif defined(EQUAL_FLOAT32)
    return uint(ordered && a == b);
#elif defined(NOT_EQUAL_FLOAT32)
    return uint(!(ordered && a == b));
#elif defined(LESS_FLOAT32)
    return uint(ordered && a < b);
#elif defined(LESS_EQUAL_FLOAT32)
    return uint(ordered && a <= b);
#elif defined(GREATER_FLOAT32)
    return uint(ordered && a > b);
#elif defined(GREATER_EQUAL_FLOAT32)
    return uint(ordered && a >= b);
#elif defined(ADD_INT32)
    return a_word + b_word;
#elif defined(SUB_INT32)
    return a_word - b_word;
#elif defined(MUL_INT32)
    return a_word * b_word;
#elif defined(DIV_INT32)
    return uint(divide_int(i, j));
#elif defined(DIV_UINT32)
    return divide_uint(a_word, b_word);
#elif defined(FLOOR_DIVIDE_INT32)
    return uint(floor_divide_int(i, j));
#elif defined(REMAINDER_INT32)
    return uint(remainder_int(i, j));
#elif defined(REMAINDER_UINT32)
    return remainder_uint(a_word, b_word);
#elif defined(FMOD_INT32)
    return uint(fmod_int(i, j));
#elif defined(POW_INT32)
    return uint(power_int(i, j));
#elif defined(POW_UINT32)
    return power_uint(a_word, b_word);
#elif defined(MAXIMUM_INT32)
    return uint(max(i, j));
#elif defined(MAXIMUM_UINT32)
    return max(a_word, b_word);
#elif defined(MINIMUM_INT32)
    return uint(min(i, j));
#elif defined(MINIMUM_UINT32)
    return min(a_word, b_word);
#elif defined(EQUAL_INT32)
    return uint(i == j);
#elif defined(NOT_EQUAL_INT32)
    return uint(i != j);
#elif defined(LESS_INT32)
    return uint(i < j);
#elif defined(LESS_UINT32)
    return uint(a_word < b_word);
#elif defined(LESS_EQUAL_INT32)
    return uint(i <= j);
#elif defined(LESS_EQUAL_UINT32)
    return uint(a_word <= b_word);
#elif defined(GREATER_INT32)
    return uint(i > j);
#elif defined(GREATER_UINT32)
    return uint(a_word > b_word);
#elif defined(GREATER_EQUAL_INT32)
    return uint(i >= j);
#elif defined(GREATER_EQUAL_UINT32)
    return uint(a_word >= b_word);
#elif defined(BITWISE_AND_INT32)
    return a_word & b_word;
#elif defined(BITWISE_OR_INT32)
    return a_word | b_word;
#elif defined(BITWISE_XOR_INT32)
    return a_word ^ b_word;
#elif defined(BITWISE_LEFT_SHIFT_INT32)
    return b_word < 32u ? a_word << b_word : 0u;
#elif defined(BITWISE_RIGHT_SHIFT_INT32)
    return uint(i >> int(min(b_word, 31u)));
#elif defined(BITWISE_RIGHT_SHIFT_UINT32)
    return b_word < 32u ? a_word >> b_word : 0u;
#endif
}
