// Functions of two 32-bit words, as in unary.glsl.
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

uint add_float32(uint a_word, uint b_word) {
    const float a = uintBitsToFloat(a_word);
    const float b = uintBitsToFloat(b_word);
    precise float result = a + b; // in a fused program, too, each op rounds
    return floatBitsToUint(result);
}

uint sub_float32(uint a_word, uint b_word) {
    const float a = uintBitsToFloat(a_word);
    const float b = uintBitsToFloat(b_word);
    precise float result = a - b; // in a fused program, too, each op rounds
    return floatBitsToUint(result);
}

uint mul_float32(uint a_word, uint b_word) {
    const float a = uintBitsToFloat(a_word);
    const float b = uintBitsToFloat(b_word);
    precise float result = a * b; // in a fused program, too, each op rounds
    return floatBitsToUint(result);
}

uint div_float32(uint a_word, uint b_word) {
    const float a = uintBitsToFloat(a_word);
    const float b = uintBitsToFloat(b_word);
    // Vulkan bounds the error of divisors to 2^126 only
    const float scale = abs(b) > 1.2676506e30 ? 3.7252903e-9 : 1.0;
    return floatBitsToUint(a * scale / (b * scale));
}

uint floor_divide_float32(uint a_word, uint b_word) {
    const float a = uintBitsToFloat(a_word);
    const float b = uintBitsToFloat(b_word);
    return floatBitsToUint(safe_floor_divide(a, b));
}

uint remainder_float32(uint a_word, uint b_word) {
    const float a = uintBitsToFloat(a_word);
    const float b = uintBitsToFloat(b_word);
    return floatBitsToUint(safe_remainder(a, b));
}

uint fmod_float32(uint a_word, uint b_word) {
    const float a = uintBitsToFloat(a_word);
    const float b = uintBitsToFloat(b_word);
    return floatBitsToUint(safe_fmod(a, b));
}

uint pow_float32(uint a_word, uint b_word) {
    const float a = uintBitsToFloat(a_word);
    const float b = uintBitsToFloat(b_word);
    return floatBitsToUint(safe_pow(a, b));
}

uint maximum_float32(uint a_word, uint b_word) {
    const float a = uintBitsToFloat(a_word);
    const float b = uintBitsToFloat(b_word);
    return floatBitsToUint(safe_max(a, b));
}

uint minimum_float32(uint a_word, uint b_word) {
    const float a = uintBitsToFloat(a_word);
    const float b = uintBitsToFloat(b_word);
    return floatBitsToUint(safe_min(a, b));
}

uint atan2_float32(uint a_word, uint b_word) {
    const float a = uintBitsToFloat(a_word);
    const float b = uintBitsToFloat(b_word);
    return floatBitsToUint(safe_atan2(a, b));
}

uint hypot_float32(uint a_word, uint b_word) {
    const float a = uintBitsToFloat(a_word);
    const float b = uintBitsToFloat(b_word);
    return floatBitsToUint(safe_hypot(a, b));
}

uint logaddexp_float32(uint a_word, uint b_word) {
    const float a = uintBitsToFloat(a_word);
    const float b = uintBitsToFloat(b_word);
    return floatBitsToUint(safe_logaddexp(a, b));
}

// Subtracting the sign bit sets it, as the magnitude has none. With | for the - this would be (a & c) | (b & ~c), and so would be
// a choice by the sign: LLVM may get that wrong on CPUs with AVX-512, as with_sign (exp_math.glsl) tells. Seen with LLVM 22.1, too.
uint copysign_float32(uint a_word, uint b_word) {
    return (a_word & 0x7fffffffu) - (b_word & 0x80000000u);
}

uint nextafter_float32(uint a_word, uint b_word) {
    return next_after(a_word, b_word);
}

uint prelu_float32(uint a_word, uint b_word) {
    const float a = uintBitsToFloat(a_word);
    const float b = uintBitsToFloat(b_word);
    const uint bent = floatBitsToUint(a * b); // apart, as in unary.glsl
    return is_negative(a_word) ? bent : a_word;
}

uint equal_float32(uint a_word, uint b_word) {
    const float a = uintBitsToFloat(a_word);
    const float b = uintBitsToFloat(b_word);
    const bool ordered = !is_nan(a) && !is_nan(b);
    return uint(ordered && a == b);
}

uint not_equal_float32(uint a_word, uint b_word) {
    const float a = uintBitsToFloat(a_word);
    const float b = uintBitsToFloat(b_word);
    const bool ordered = !is_nan(a) && !is_nan(b);
    return uint(!(ordered && a == b));
}

uint less_float32(uint a_word, uint b_word) {
    const float a = uintBitsToFloat(a_word);
    const float b = uintBitsToFloat(b_word);
    const bool ordered = !is_nan(a) && !is_nan(b);
    return uint(ordered && a < b);
}

uint less_equal_float32(uint a_word, uint b_word) {
    const float a = uintBitsToFloat(a_word);
    const float b = uintBitsToFloat(b_word);
    const bool ordered = !is_nan(a) && !is_nan(b);
    return uint(ordered && a <= b);
}

uint greater_float32(uint a_word, uint b_word) {
    const float a = uintBitsToFloat(a_word);
    const float b = uintBitsToFloat(b_word);
    const bool ordered = !is_nan(a) && !is_nan(b);
    return uint(ordered && a > b);
}

uint greater_equal_float32(uint a_word, uint b_word) {
    const float a = uintBitsToFloat(a_word);
    const float b = uintBitsToFloat(b_word);
    const bool ordered = !is_nan(a) && !is_nan(b);
    return uint(ordered && a >= b);
}

uint add_int32(uint a_word, uint b_word) {
    return a_word + b_word;
}

uint sub_int32(uint a_word, uint b_word) {
    return a_word - b_word;
}

uint mul_int32(uint a_word, uint b_word) {
    return a_word * b_word;
}

uint div_int32(uint a_word, uint b_word) {
    const int i = int(a_word);
    const int j = int(b_word);
    return uint(divide_int(i, j));
}

uint div_uint32(uint a_word, uint b_word) {
    return divide_uint(a_word, b_word);
}

uint floor_divide_int32(uint a_word, uint b_word) {
    const int i = int(a_word);
    const int j = int(b_word);
    return uint(floor_divide_int(i, j));
}

uint remainder_int32(uint a_word, uint b_word) {
    const int i = int(a_word);
    const int j = int(b_word);
    return uint(remainder_int(i, j));
}

uint remainder_uint32(uint a_word, uint b_word) {
    return remainder_uint(a_word, b_word);
}

uint fmod_int32(uint a_word, uint b_word) {
    const int i = int(a_word);
    const int j = int(b_word);
    return uint(fmod_int(i, j));
}

uint pow_int32(uint a_word, uint b_word) {
    const int i = int(a_word);
    const int j = int(b_word);
    return uint(power_int(i, j));
}

uint pow_uint32(uint a_word, uint b_word) {
    return power_uint(a_word, b_word);
}

uint maximum_int32(uint a_word, uint b_word) {
    const int i = int(a_word);
    const int j = int(b_word);
    return uint(max(i, j));
}

uint maximum_uint32(uint a_word, uint b_word) {
    return max(a_word, b_word);
}

uint minimum_int32(uint a_word, uint b_word) {
    const int i = int(a_word);
    const int j = int(b_word);
    return uint(min(i, j));
}

uint minimum_uint32(uint a_word, uint b_word) {
    return min(a_word, b_word);
}

uint equal_int32(uint a_word, uint b_word) {
    const int i = int(a_word);
    const int j = int(b_word);
    return uint(i == j);
}

uint not_equal_int32(uint a_word, uint b_word) {
    const int i = int(a_word);
    const int j = int(b_word);
    return uint(i != j);
}

uint less_int32(uint a_word, uint b_word) {
    const int i = int(a_word);
    const int j = int(b_word);
    return uint(i < j);
}

uint less_uint32(uint a_word, uint b_word) {
    return uint(a_word < b_word);
}

uint less_equal_int32(uint a_word, uint b_word) {
    const int i = int(a_word);
    const int j = int(b_word);
    return uint(i <= j);
}

uint less_equal_uint32(uint a_word, uint b_word) {
    return uint(a_word <= b_word);
}

uint greater_int32(uint a_word, uint b_word) {
    const int i = int(a_word);
    const int j = int(b_word);
    return uint(i > j);
}

uint greater_uint32(uint a_word, uint b_word) {
    return uint(a_word > b_word);
}

uint greater_equal_int32(uint a_word, uint b_word) {
    const int i = int(a_word);
    const int j = int(b_word);
    return uint(i >= j);
}

uint greater_equal_uint32(uint a_word, uint b_word) {
    return uint(a_word >= b_word);
}

uint bitwise_and_int32(uint a_word, uint b_word) {
    return a_word & b_word;
}

uint bitwise_or_int32(uint a_word, uint b_word) {
    return a_word | b_word;
}

uint bitwise_xor_int32(uint a_word, uint b_word) {
    return a_word ^ b_word;
}

uint bitwise_left_shift_int32(uint a_word, uint b_word) {
    return b_word < 32u ? a_word << b_word : 0u;
}

uint bitwise_right_shift_int32(uint a_word, uint b_word) {
    const int i = int(a_word);
    return uint(i >> int(min(b_word, 31u)));
}

uint bitwise_right_shift_uint32(uint a_word, uint b_word) {
    return b_word < 32u ? a_word >> b_word : 0u;
}
