// Elementwise functions on 32-bit words, chosen by op code. A code names the op and the type of its operands.
// The codes stand again in vksched/ops/elementwise.py; a test compares the two.
#include "float_math.glsl"

const uint SQRT_FLOAT32 = 0u;
const uint RSQRT_FLOAT32 = 1u;
const uint EXP_FLOAT32 = 2u;
const uint LOG_FLOAT32 = 3u;
const uint TANH_FLOAT32 = 4u;
const uint ERF_FLOAT32 = 5u;
const uint RELU_FLOAT32 = 6u;
const uint GELU_FLOAT32 = 7u;
const uint GELU_TANH_FLOAT32 = 8u;
const uint SILU_FLOAT32 = 9u;
const uint SIGMOID_FLOAT32 = 10u;
const uint NEG_FLOAT32 = 11u;
const uint ABS_FLOAT32 = 12u;
const uint NEG_INT32 = 13u;
const uint ABS_INT32 = 14u;
const uint RELU_INT32 = 15u;
const uint LOGICAL_NOT_BOOL = 16u;
const uint FLOAT32_TO_INT32 = 17u;
const uint FLOAT32_TO_BOOL = 18u;
const uint INT32_TO_FLOAT32 = 19u;
const uint INT32_TO_BOOL = 20u;
const uint BOOL_TO_FLOAT32 = 21u;
const uint BOOL_TO_INT32 = 22u;

const uint ADD_FLOAT32 = 64u;
const uint SUB_FLOAT32 = 65u;
const uint MUL_FLOAT32 = 66u;
const uint DIV_FLOAT32 = 67u;
const uint POW_FLOAT32 = 68u;
const uint MAXIMUM_FLOAT32 = 69u;
const uint MINIMUM_FLOAT32 = 70u;
const uint EQUAL_FLOAT32 = 71u;
const uint NOT_EQUAL_FLOAT32 = 72u;
const uint LESS_FLOAT32 = 73u;
const uint LESS_EQUAL_FLOAT32 = 74u;
const uint GREATER_FLOAT32 = 75u;
const uint GREATER_EQUAL_FLOAT32 = 76u;
const uint ADD_INT32 = 77u;
const uint SUB_INT32 = 78u;
const uint MUL_INT32 = 79u;
const uint DIV_INT32 = 80u;
const uint POW_INT32 = 81u;
const uint MAXIMUM_INT32 = 82u;
const uint MINIMUM_INT32 = 83u;
const uint EQUAL_INT32 = 84u;
const uint NOT_EQUAL_INT32 = 85u;
const uint LESS_INT32 = 86u;
const uint LESS_EQUAL_INT32 = 87u;
const uint GREATER_INT32 = 88u;
const uint GREATER_EQUAL_INT32 = 89u;
const uint LOGICAL_AND_BOOL = 90u;
const uint LOGICAL_OR_BOOL = 91u;
const uint LOGICAL_XOR_BOOL = 92u;
const uint EQUAL_BOOL = 93u;
const uint NOT_EQUAL_BOOL = 94u;

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

uint apply_unary(uint op, uint word) {
    const float x = uintBitsToFloat(word);
    const int i = int(word);
    switch (op) {
    case SQRT_FLOAT32: return floatBitsToUint(safe_sqrt(x));
    case RSQRT_FLOAT32: return floatBitsToUint(safe_rsqrt(x));
    case EXP_FLOAT32: return floatBitsToUint(safe_exp(x));
    case LOG_FLOAT32: return floatBitsToUint(safe_log(x));
    case TANH_FLOAT32: return floatBitsToUint(safe_tanh(x));
    case ERF_FLOAT32: return floatBitsToUint(safe_erf(x));
    case RELU_FLOAT32: return is_nan(x) || x > 0.0 ? word : 0u;
    case GELU_FLOAT32: return floatBitsToUint(gelu_erf(x));
    case GELU_TANH_FLOAT32: return floatBitsToUint(gelu_tanh(x));
    case SILU_FLOAT32: return floatBitsToUint(x * sigmoid(x));
    case SIGMOID_FLOAT32: return floatBitsToUint(sigmoid(x));
    case NEG_FLOAT32: return word ^ 0x80000000u;
    case ABS_FLOAT32: return word & 0x7fffffffu;
    case NEG_INT32: return 0u - word;
    case ABS_INT32: return i < 0 ? 0u - word : word;
    case RELU_INT32: return i > 0 ? word : 0u;
    case LOGICAL_NOT_BOOL: return word ^ 1u;
    case FLOAT32_TO_INT32: return uint(float_to_int(x));
    case FLOAT32_TO_BOOL: return uint((word & 0x7fffffffu) != 0u);
    case INT32_TO_FLOAT32: return floatBitsToUint(float(i));
    case INT32_TO_BOOL: return uint(word != 0u);
    case BOOL_TO_FLOAT32: return word != 0u ? 0x3f800000u : 0u;
    default: return word; // BOOL_TO_INT32
    }
}

uint apply_binary(uint op, uint a_word, uint b_word) {
    const float a = uintBitsToFloat(a_word);
    const float b = uintBitsToFloat(b_word);
    const int i = int(a_word);
    const int j = int(b_word);
    const bool ordered = !is_nan(a) && !is_nan(b);
    switch (op) {
    case ADD_FLOAT32: return floatBitsToUint(a + b);
    case SUB_FLOAT32: return floatBitsToUint(a - b);
    case MUL_FLOAT32: return floatBitsToUint(a * b);
    case DIV_FLOAT32: return floatBitsToUint(a / b);
    case POW_FLOAT32: return floatBitsToUint(safe_pow(a, b));
    case MAXIMUM_FLOAT32: return floatBitsToUint(safe_max(a, b));
    case MINIMUM_FLOAT32: return floatBitsToUint(safe_min(a, b));
    case EQUAL_FLOAT32: return uint(ordered && a == b);
    case NOT_EQUAL_FLOAT32: return uint(!(ordered && a == b));
    case LESS_FLOAT32: return uint(ordered && a < b);
    case LESS_EQUAL_FLOAT32: return uint(ordered && a <= b);
    case GREATER_FLOAT32: return uint(ordered && a > b);
    case GREATER_EQUAL_FLOAT32: return uint(ordered && a >= b);
    case ADD_INT32: return a_word + b_word;
    case SUB_INT32: return a_word - b_word;
    case MUL_INT32: return a_word * b_word;
    case DIV_INT32: return uint(divide_int(i, j));
    case POW_INT32: return uint(power_int(i, j));
    case MAXIMUM_INT32: return uint(max(i, j));
    case MINIMUM_INT32: return uint(min(i, j));
    case EQUAL_INT32: return uint(i == j);
    case NOT_EQUAL_INT32: return uint(i != j);
    case LESS_INT32: return uint(i < j);
    case LESS_EQUAL_INT32: return uint(i <= j);
    case GREATER_INT32: return uint(i > j);
    case GREATER_EQUAL_INT32: return uint(i >= j);
    case LOGICAL_AND_BOOL: return a_word & b_word;
    case LOGICAL_OR_BOOL: return a_word | b_word;
    case LOGICAL_XOR_BOOL: return a_word ^ b_word;
    case EQUAL_BOOL: return uint(a_word == b_word);
    default: return uint(a_word != b_word); // NOT_EQUAL_BOOL
    }
}
