// Integer functions, defined for every operand and the same on every device.
#ifndef INT_MATH
#define INT_MATH
#include "float_math.glsl"

const int INT32_LEAST = int(0x80000000u);

// Truncates; what does not fit, NaN too, becomes the least int, as x86 does.
int float_to_int(float x) {
    if (is_nan(x) || x >= 2147483648.0 || x < -2147483648.0) return INT32_LEAST;
    return int(x);
}

// Truncates; what does not fit becomes the nearest that does, and NaN 0.
uint float_to_uint(float x) {
    if (is_nan(x) || x < 1.0) return 0u;
    return x >= 4294967296.0 ? 0xffffffffu : uint(x);
}

// Truncates towards zero; by zero gives 0, and the least int by -1 wraps, on every device.
int divide_int(int a, int b) {
    if (b == 0) return 0;
    if (b == -1) return int(0u - uint(a));
    return a / b;
}

// Of the sign of a; by zero gives 0.
int fmod_int(int a, int b) {
    return b == 0 ? 0 : a - divide_int(a, b) * b;
}

int floor_divide_int(int a, int b) {
    const int quotient = divide_int(a, b);
    return fmod_int(a, b) != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

// Of the sign of b; by zero gives 0.
int remainder_int(int a, int b) {
    const int r = fmod_int(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

uint divide_uint(uint a, uint b) { return b == 0u ? 0u : a / b; }

uint remainder_uint(uint a, uint b) { return b == 0u ? 0u : a % b; }

uint power_uint(uint base, uint exponent) {
    uint result = 1u;
    while (exponent != 0u) {
        if ((exponent & 1u) != 0u) result *= base;
        base *= base;
        exponent >>= 1;
    }
    return result;
}

int power_int(int base, int exponent) {
    if (exponent < 0) return base == 1 ? 1 : base == -1 ? ((exponent & 1) == 0 ? 1 : -1) : 0;
    return int(power_uint(uint(base), uint(exponent)));
}
#endif
