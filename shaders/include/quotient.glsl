// x / y, rounded to nearest. A division may be off by 2.5 units in the last place, and llvmpipe multiplies by 1 / 127 (Mesa 22.3):
// where a quotient is rounded to a whole number, that gives another one at times. So its 24 digits are put right as integers.
float rounded_quotient(float x, float y) {
    const float near = x / y;
    const uvec2 words = uvec2(floatBitsToUint(x), floatBitsToUint(y)) & 0x7fffffffu;
    const uvec2 exponents = words >> 23;
    const uvec2 digits = words & 0x007fffffu | 0x00800000u;
    const uint less = uint(digits.x < digits.y);
    const int exponent = int(exponents.x - exponents.y) + 126 - int(less);
    const uint base = uint(exponent) << 23;
    const uint quotient = (floatBitsToUint(near) & 0x7fffffffu) - base;
    // what is left of x is small, so its lower word does
    const int rest = int((digits.x << 23u + less) - digits.y * quotient);
    const int steps = int(floor(float(rest) / float(digits.y) + 0.5));
    const int twice = 2 * (rest - steps * int(digits.y));
    const int last = int(twice > int(digits.y)) - int(twice < -int(digits.y));
    const uint word = base + quotient + uint(steps + last) | floatBitsToUint(near) & 0x80000000u;
    // near a denormal, or none, a division is all there is, and Vulkan bounds it for divisors up to 2^126 only
    const bool known = min(exponents.x, exponents.y) > 0u && exponents.x < 255u && exponents.y < 253u && exponent > 0 && exponent < 253;
    return known ? uintBitsToFloat(word) : near;
}
