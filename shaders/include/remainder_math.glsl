// Remainders of floats, exact: long division of the mantissas, eight bits of the quotient at a time.
#ifndef REMAINDER_MATH
#define REMAINDER_MATH
#include "exp_math.glsl"

// |a| mod |b| for finite a and b, b not 0. quotient: of the two, rounded down, where the exponents differ by at most 23.
float positive_remainder(float a, float b, out uint quotient) {
    const uint left = floatBitsToUint(a) & 0x7fffffffu;
    const uint right = floatBitsToUint(b) & 0x7fffffffu;
    quotient = 0u;
    if (left < right) return uintBitsToFloat(left);
    const int exponent = int(max(right >> 23, 1u));
    int rest = int(max(left >> 23, 1u)) - exponent;
    const uint by = right >= 0x00800000u ? (right & 0x007fffffu) | 0x00800000u : right;
    const uint from = left >= 0x00800000u ? (left & 0x007fffffu) | 0x00800000u : left;
    quotient = from / by;
    uint r = from - quotient * by;
    while (rest > 0) {
        const int bits = min(rest, 8);
        const uint digit = (r << bits) / by;
        r = (r << bits) - digit * by;
        quotient = (quotient << bits) | digit;
        rest -= bits;
    }
    if (r == 0u) return 0.0;
    const int up = min(23 - findMSB(r), exponent - 1);
    r <<= up;
    return uintBitsToFloat(r < 0x00800000u ? r : (uint(exponent - up) << 23) | (r & 0x007fffffu));
}

bool negative(float x) { return (floatBitsToUint(x) >> 31) != 0u; }

// As C's fmod: of the sign of a.
float safe_fmod(float a, float b) {
    if (is_nan(a) || is_nan(b) || is_inf(a) || b == 0.0) return NOT_A_NUMBER;
    if (is_inf(b)) return a;
    uint quotient;
    return with_sign(positive_remainder(a, b, quotient), a);
}

// As numpy.remainder and Python's %: of the sign of b.
float safe_remainder(float a, float b) {
    const float r = safe_fmod(a, b);
    if (is_nan(r)) return r;
    if (r == 0.0) return with_sign(0.0, b);
    return negative(r) != negative(b) ? r + b : r;
}

// As numpy.floor_divide.
float safe_floor_divide(float a, float b) {
    if (is_nan(a) || is_nan(b)) return NOT_A_NUMBER;
    const bool below = negative(a) != negative(b);
    const float sign_of_result = below ? -1.0 : 1.0;
    if (b == 0.0) return a == 0.0 ? NOT_A_NUMBER : sign_of_result * INFINITY;
    if (is_inf(a)) return NOT_A_NUMBER;
    if (is_inf(b)) return with_sign(below && a != 0.0 ? 1.0 : 0.0, sign_of_result);
    uint quotient;
    const float r = positive_remainder(a, b, quotient);
    const int distance = int((floatBitsToUint(a) >> 23) & 0xffu) - int((floatBitsToUint(b) >> 23) & 0xffu);
    const float whole = distance > 23 ? floor(abs(a) / abs(b)) : float(quotient);
    return with_sign(below && r != 0.0 ? whole + 1.0 : whole, sign_of_result);
}
#endif
