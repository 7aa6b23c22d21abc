// Circular functions and their inverses. GLSL's own sin and cos have an absolute error, and none defined beyond pi.
// Polynomials: Moshier, Cephes (sinf, cosf, tanf, asinf, atanf), errors of about one unit in the last place.
#ifndef TRIG_MATH
#define TRIG_MATH
#include "exp_math.glsl"

#define HALF_PI 1.57079632679
#define PI 3.14159265359

// Word i < 8 of 2 / pi as a fraction, behind a word of zeros and two zero bits: the top two bits of a product are the quadrant.
// No array, as some drivers fill one in memory for every call.
uint two_over_pi(uint i) {
    const uvec4 four = i < 4u ? uvec4(0u, 0x28be60dbu, 0x9391054au, 0x7f09d5f4u) : uvec4(0x7d4d3770u, 0x36d8a566u, 0x4f10e410u, 0x7f9458eau);
    const uvec2 two = (i & 2u) == 0u ? four.xy : four.zw;
    return (i & 1u) == 0u ? two.x : two.y;
}

// x = quadrant pi / 2 + r with |r| <= pi / 4, for finite x >= 0.5: exact for the largest too, in integers.
// Source: Payne and Hanek, Radian reduction for trigonometric functions, 1983.
float reduce_angle(float x, out uint quadrant) {
    const uint word = floatBitsToUint(x);
    const uint exponent = (word >> 23) - 126u;
    const uint mantissa = (word << 8) | 0x80000000u;
    const uint i = exponent >> 5;
    const uint shift = exponent & 31u;
    uint high = two_over_pi(i);
    uint middle = two_over_pi(i + 1u);
    uint low = two_over_pi(i + 2u);
    if (shift != 0u) {
        high = (high << shift) | (middle >> (32u - shift));
        middle = (middle << shift) | (low >> (32u - shift));
        low = (low << shift) | (two_over_pi(i + 3u) >> (32u - shift));
    }
    uint carried, unused, product, carry;
    umulExtended(mantissa, low, carried, unused);
    umulExtended(mantissa, middle, product, low);
    low = uaddCarry(low, carried, carry);
    high = mantissa * high + product + carry;
    quadrant = high >> 30;
    high &= 0x3fffffffu;
    const bool above = high >= 0x20000000u; // nearer to the next multiple
    if (above) {
        quadrant += 1u;
        high = ~(high - 0x40000000u) + (low == 0u ? 1u : 0u);
        low = 0u - low;
    }
    int down = 29;
    if (high == 0u) {
        high = low;
        low = 0u;
        down += 32;
    }
    if (high == 0u) return 0.0;
    const int zeros = 31 - findMSB(high);
    if (zeros > 0) high = (high << zeros) | (low >> (32 - zeros));
    umulExtended(high, 0xc90fdaa2u, high, unused); // times pi / 2
    const float r = float(high) * power_of_two(-down - zeros);
    return above ? -r : r;
}

// sin(r) for |r| <= pi / 4.
float sine_near_0(float r) {
    const float z = r * r;
    return r + r * z * (-1.6666654611e-1 + z * (8.3321608736e-3 + z * -1.9515295891e-4));
}

float cosine_near_0(float r) {
    const float z = r * r;
    const float p = 4.166664568298827e-2 + z * (-1.388731625493765e-3 + z * 2.443315711809948e-5);
    return 1.0 - 0.5 * z + z * z * p;
}

float tangent_near_0(float r) {
    const float z = r * r;
    float p = 9.38540185543e-3;
    p = 3.11992232697e-3 + z * p;
    p = 2.44301354525e-2 + z * p;
    p = 5.34112807005e-2 + z * p;
    p = 1.33387994085e-1 + z * p;
    p = 3.33331568548e-1 + z * p;
    return r + r * z * p;
}

float split_angle(float a, out uint quadrant) {
    quadrant = 0u;
    return a < 0.78 ? a : reduce_angle(a, quadrant);
}

float safe_sin(float x) {
    if (is_nan(x) || is_inf(x)) return NOT_A_NUMBER;
    if (abs(x) < 2e-4) return x;
    uint quadrant;
    const float r = split_angle(abs(x), quadrant);
    const float s = (quadrant & 1u) == 0u ? sine_near_0(r) : cosine_near_0(r);
    return (quadrant & 2u) != 0u != (x < 0.0) ? -s : s;
}

float safe_cos(float x) {
    if (is_nan(x) || is_inf(x)) return NOT_A_NUMBER;
    uint quadrant;
    const float r = split_angle(abs(x), quadrant);
    const float c = (quadrant & 1u) == 0u ? cosine_near_0(r) : sine_near_0(r);
    return ((quadrant + 1u) & 2u) != 0u ? -c : c;
}

float safe_tan(float x) {
    if (is_nan(x) || is_inf(x)) return NOT_A_NUMBER;
    if (abs(x) < 2e-4) return x;
    uint quadrant;
    const float r = split_angle(abs(x), quadrant);
    const float t = tangent_near_0(r);
    const float u = (quadrant & 1u) == 0u ? t : -1.0 / t;
    return x < 0.0 ? -u : u;
}

// asin(a) for 0 <= a <= 0.5.
float arcsine_near_0(float a) {
    const float z = a * a;
    float p = 4.2163199048e-2;
    p = 2.4181311049e-2 + z * p;
    p = 4.5470025998e-2 + z * p;
    p = 7.4953002686e-2 + z * p;
    p = 1.6666752422e-1 + z * p;
    return a + a * z * p;
}

float safe_asin(float x) {
    const float a = abs(x);
    if (is_nan(x) || a > 1.0) return NOT_A_NUMBER;
    if (a < 2e-4) return x;
    const float s = a > 0.5 ? HALF_PI - 2.0 * arcsine_near_0(safe_sqrt(0.5 * (1.0 - a))) : arcsine_near_0(a);
    return with_sign(s, x);
}

// By halves of the angle near 1 and -1, where pi / 2 - asin would lose digits.
float safe_acos(float x) {
    const float a = abs(x);
    if (is_nan(x) || a > 1.0) return NOT_A_NUMBER;
    if (a <= 0.5) return HALF_PI - with_sign(arcsine_near_0(a), x);
    const float c = 2.0 * arcsine_near_0(safe_sqrt(0.5 * (1.0 - a)));
    return x < 0.0 ? PI - c : c;
}

// atan(a) for 0 <= a <= 1.
float arctangent_to_1(float a) {
    const bool far = a > 0.41421356;
    const float t = far ? (a - 1.0) / (a + 1.0) : a;
    const float z = t * t;
    float p = 8.05374449538e-2;
    p = -1.38776856032e-1 + z * p;
    p = 1.99777106478e-1 + z * p;
    p = -3.33329491539e-1 + z * p;
    p = t + t * z * p;
    return far ? 0.78539816340 + p : p;
}

float safe_atan(float x) {
    const float a = abs(x);
    if (is_nan(x) || a < 2e-4) return x;
    const float t = a > 1e9 ? HALF_PI : a > 1.0 ? HALF_PI - arctangent_to_1(1.0 / a) : arctangent_to_1(a);
    return with_sign(t, x);
}

// As C's atan2: the signs of zeros choose the quadrant.
float safe_atan2(float y, float x) {
    if (is_nan(x) || is_nan(y)) return NOT_A_NUMBER;
    float a = abs(y);
    float b = abs(x);
    const bool steep = a > b;
    const float larger = steep ? a : b;
    float t = 0.0;
    if (is_inf(a) && is_inf(b)) {
        t = 1.0;
    } else if (larger > 0.0 && !is_inf(larger)) {
        const float scale = power_of_two(larger > 1e18 ? -66 : larger < 1e-18 ? 66 : 0); // Vulkan bounds a divisor
        t = steep ? (b * scale) / (a * scale) : (a * scale) / (b * scale);
    }
    t = arctangent_to_1(t);
    if (steep) t = HALF_PI - t;
    if ((floatBitsToUint(x) >> 31) != 0u) t = PI - t;
    return with_sign(t, y);
}
#endif
