// Float functions with numpy's results at the edges, where GLSL's own are undefined or imprecise.
// NaN is tested by its bits: drivers may assume that isnan() is false.
#ifndef FLOAT_MATH
#define FLOAT_MATH

#define INFINITY uintBitsToFloat(0x7f800000u)
#define NOT_A_NUMBER uintBitsToFloat(0x7fc00000u)

bool is_nan(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }

// Below 0, which neither -0 nor NaN is.
bool is_negative(uint word) { return word > 0x80000000u && word <= 0xff800000u; }

bool is_inf(float x) { return (floatBitsToUint(x) & 0x7fffffffu) == 0x7f800000u; }

// By bits, as drivers may take a denormal for 0. A denormal is its word times 2^-149.
bool is_zero(float x) { return (floatBitsToUint(x) & 0x7fffffffu) == 0u; }

bool is_negative(float x) { return (floatBitsToUint(x) >> 31) != 0u; }

bool is_denormal(float x) { return (floatBitsToUint(x) & 0x7f800000u) == 0u; }

const float TWO_TO_75_INVERSE = 2.6469779601696886e-23;

float safe_exp(float x) {
    if (is_nan(x)) return x;
    if (x > 88.8) return INFINITY;
    if (x < -104.0) return 0.0;
    return exp(x);
}

// exponent and mantissa: x = 2^exponent * mantissa, mantissa in sqrt(1/2)..sqrt(2), for finite x > 0, denormals too.
float split_exponent(float x, out float mantissa) {
    uint word = floatBitsToUint(x);
    int exponent = int(word >> 23) - 127;
    if (word < 0x00800000u) {
        const int top = findMSB(max(word, 1u));
        word <<= uint(23 - top);
        exponent = top - 149;
    }
    mantissa = uintBitsToFloat((word & 0x007fffffu) | 0x3f800000u);
    if (mantissa > 1.41421356) {
        mantissa *= 0.5;
        exponent += 1;
    }
    return float(exponent);
}

// log of a mantissa by the series of atanh: GLSL's own has an absolute error only, and none left near 1.
float log_mantissa(float mantissa) {
    const float s = (mantissa - 1.0) / (mantissa + 1.0);
    const float q = s * s;
    return 2.0 * s * (1.0 + q * (1.0 / 3.0 + q * (1.0 / 5.0 + q * (1.0 / 7.0 + q * (1.0 / 9.0)))));
}

float safe_log(float x) {
    if (is_zero(x)) return -INFINITY;
    if (is_nan(x) || is_negative(x)) return NOT_A_NUMBER;
    if (is_inf(x)) return x;
    float mantissa;
    const float exponent = split_exponent(x, mantissa);
    // log(2) in two parts, the first of few bits, so that its product is exact
    return exponent * 0.693359375 + (exponent * -2.12194440e-4 + log_mantissa(mantissa));
}

float safe_sqrt(float x) {
    if (is_zero(x)) return x;
    if (is_nan(x) || is_negative(x)) return NOT_A_NUMBER;
    if (is_inf(x)) return x;
    if (is_denormal(x)) return sqrt(2.0 * float(floatBitsToUint(x))) * TWO_TO_75_INVERSE;
    return sqrt(x);
}

float safe_rsqrt(float x) {
    if (is_zero(x)) return uintBitsToFloat(floatBitsToUint(x) | 0x7f800000u); // of the sign of x
    if (is_nan(x) || is_negative(x)) return NOT_A_NUMBER;
    if (is_inf(x)) return 0.0;
    if (is_denormal(x)) return inversesqrt(2.0 * float(floatBitsToUint(x))) / TWO_TO_75_INVERSE;
    return inversesqrt(x);
}

// Near 0 a Taylor series, as 1 - exp loses digits there; elsewhere by exp(-2|x|), which cannot overflow.
float safe_tanh(float x) {
    if (is_nan(x)) return x;
    const float a = abs(x);
    if (a < 0.25) {
        const float q = x * x;
        const float p = 1.0 + q * (-1.0 / 3.0 + q * (2.0 / 15.0 + q * (-17.0 / 315.0 + q * 62.0 / 2835.0)));
        return x * p;
    }
    const float e = safe_exp(-2.0 * a);
    const float t = (1.0 - e) / (1.0 + e);
    return x < 0.0 ? -t : t;
}

float sigmoid(float x) {
    if (is_nan(x)) return x;
    const float e = safe_exp(-abs(x));
    return x < 0.0 ? e / (1.0 + e) : 1.0 / (1.0 + e);
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
    if (is_nan(x)) return x;
    const float a = abs(x);
    if (a < 0.5) {
        const float q = x * x;
        float p = -1.0 / 1320.0;
        p = 1.0 / 216.0 + q * p;
        p = -1.0 / 42.0 + q * p;
        p = 1.0 / 10.0 + q * p;
        p = -1.0 / 3.0 + q * p;
        return 1.1283791671 * x * (1.0 + q * p);
    }
    const float c = a > 10.0 ? 0.0 : erfc_positive(a);
    return x < 0.0 ? c - 1.0 : 1.0 - c;
}

// x * Phi(x); for x < 0 by erfc, as 1 + erf loses digits there.
float gelu_erf(float x) {
    if (is_nan(x)) return x;
    const float z = abs(x) * 0.70710678119;
    const float c = z > 10.0 ? 0.0 : erfc_positive(z);
    return 0.5 * x * (x < 0.0 ? c : 2.0 - c);
}

float gelu_tanh(float x) {
    return x * sigmoid(1.5957691216 * (x + 0.044715 * x * x * x)); // (1 + tanh(u)) / 2 = sigmoid(2 u)
}

float safe_max(float a, float b) {
    const float larger = a > b ? a : b; // b where it is NaN
    return is_nan(a) ? a : larger;
}

float safe_min(float a, float b) {
    const float smaller = a < b ? a : b; // b where it is NaN
    return is_nan(a) ? a : smaller;
}

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
