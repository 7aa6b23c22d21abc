// Elementwise functions on 32-bit words. Each variant defines the name of its op and the type of its operands, and holds
// that function only: drivers take a hundred times longer over a kernel with all of them.
#include "float_math.glsl"

const int INT32_LEAST = int(0x80000000u);

// Truncates; what does not fit, NaN too, becomes the least int, as x86 does.
int float_to_int(float x) {
    if (is_nan(x) || x >= 2147483648.0 || x < -2147483648.0) return INT32_LEAST;
    return int(x);
}

// Truncates towards zero; by zero gives 0, and the least int by -1 wraps, on every device.
int divide_int(int a, int b) {
    if (b == 0) return 0;
    if (b == -1) return int(0u - uint(a));
    return a / b;
}

int power_int(int base, int exponent) {
    if (exponent < 0) return base == 1 ? 1 : base == -1 ? ((exponent & 1) == 0 ? 1 : -1) : 0;
    int result = 1;
    while (exponent != 0) {
        if ((exponent & 1) != 0) result *= base;
        base *= base;
        exponent >>= 1;
    }
    return result;
}

#if defined(UNARY)
uint apply_unary(uint word) {
    const float x = uintBitsToFloat(word);
    const int i = int(word);
#if defined(SQRT_FLOAT32)
    return floatBitsToUint(safe_sqrt(x));
#elif defined(RSQRT_FLOAT32)
    return floatBitsToUint(safe_rsqrt(x));
#elif defined(EXP_FLOAT32)
    return floatBitsToUint(safe_exp(x));
#elif defined(LOG_FLOAT32)
    return floatBitsToUint(safe_log(x));
#elif defined(TANH_FLOAT32)
    return floatBitsToUint(safe_tanh(x));
#elif defined(ERF_FLOAT32)
    return floatBitsToUint(safe_erf(x));
#elif defined(RELU_FLOAT32)
    return is_nan(x) || x > 0.0 ? word : 0u;
#elif defined(GELU_FLOAT32)
    return floatBitsToUint(gelu_erf(x));
#elif defined(GELU_TANH_FLOAT32)
    return floatBitsToUint(gelu_tanh(x));
#elif defined(SILU_FLOAT32)
    return floatBitsToUint(x * sigmoid(x));
#elif defined(SIGMOID_FLOAT32)
    return floatBitsToUint(sigmoid(x));
#elif defined(NEG_FLOAT32)
    return word ^ 0x80000000u;
#elif defined(ABS_FLOAT32)
    return word & 0x7fffffffu;
#elif defined(NEG_INT32)
    return 0u - word;
#elif defined(ABS_INT32)
    return i < 0 ? 0u - word : word;
#elif defined(RELU_INT32)
    return i > 0 ? word : 0u;
#elif defined(LOGICAL_NOT_BOOL)
    return word ^ 1u;
#elif defined(FLOAT32_TO_INT32)
    return uint(float_to_int(x));
#elif defined(FLOAT32_TO_BOOL)
    return uint((word & 0x7fffffffu) != 0u);
#elif defined(INT32_TO_FLOAT32)
    return floatBitsToUint(float(i));
#elif defined(INT32_TO_BOOL)
    return uint(word != 0u);
#elif defined(BOOL_TO_FLOAT32)
    return word != 0u ? 0x3f800000u : 0u;
#elif defined(BOOL_TO_INT32)
    return word;
#endif
}
#else
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
    return floatBitsToUint(a / b);
#elif defined(POW_FLOAT32)
    return floatBitsToUint(safe_pow(a, b));
#elif defined(MAXIMUM_FLOAT32)
    return floatBitsToUint(safe_max(a, b));
#elif defined(MINIMUM_FLOAT32)
    return floatBitsToUint(safe_min(a, b));
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
#elif defined(POW_INT32)
    return uint(power_int(i, j));
#elif defined(MAXIMUM_INT32)
    return uint(max(i, j));
#elif defined(MINIMUM_INT32)
    return uint(min(i, j));
#elif defined(EQUAL_INT32)
    return uint(i == j);
#elif defined(NOT_EQUAL_INT32)
    return uint(i != j);
#elif defined(LESS_INT32)
    return uint(i < j);
#elif defined(LESS_EQUAL_INT32)
    return uint(i <= j);
#elif defined(GREATER_INT32)
    return uint(i > j);
#elif defined(GREATER_EQUAL_INT32)
    return uint(i >= j);
#elif defined(LOGICAL_AND_BOOL)
    return a_word & b_word;
#elif defined(LOGICAL_OR_BOOL)
    return a_word | b_word;
#elif defined(LOGICAL_XOR_BOOL)
    return a_word ^ b_word;
#elif defined(EQUAL_BOOL)
    return uint(a_word == b_word);
#elif defined(NOT_EQUAL_BOOL)
    return uint(a_word != b_word);
#endif
}
#endif
