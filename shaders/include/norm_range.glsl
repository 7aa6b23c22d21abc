// Rows whose squares leave the range of float32: they are normed once more, multiplied by a power of two, and so are those that
// go together with them. That stands apart from the loops over rows, as CPU drivers go through both sides of a branch.
#include "float_math.glsl"

// Whether 1 / sqrt(squares + eps) was made of squares that are infinite, or nearly 0: it is not in 1e-20..1e15. NaN is neither.
bool is_lost(float scale) { return floatBitsToUint(scale) - 0x1e3ce508u > 0x58635fa9u - 0x1e3ce508u; }

uint largest_word(vec4 four) {
    const uvec4 words = floatBitsToUint(four) & 0x7fffffffu;
    return max(max(words.x, words.y), max(words.z, words.w));
}

// The power of two that brings a row's largest magnitude, of which this is the word, near 1; 1 where it is 0 or not finite, and
// less for small rows that eps outweighs.
float power_for(uint word, float eps) {
    const uint biased = word >> 23;
    const uint power = min(max(254u - biased, 1u), eps > 1e-30 ? 127u : eps > 0.0 ? 167u : 254u); // 1, 2^40
    return biased - 1u < 254u ? uintBitsToFloat(power << 23) : 1.0;
}

// 1 / sqrt(variance + eps), of a variance that rounding may have made less than 0: found by its bits, as NaN is to stay.
float rate_of(float variance, float eps) {
    const uint word = floatBitsToUint(variance);
    return 1.0 / sqrt(uintBitsToFloat(is_negative(word) ? 0u : word) + eps);
}

// eps * by * by for a power of two, by bits: a driver may compute by * by first, which is infinite or 0 for most powers.
float eps_for(float eps, float by) {
    const uint word = floatBitsToUint(eps);
    const int exponent = int(word >> 23) + 2 * (int(floatBitsToUint(by) >> 23) - 127);
    return uintBitsToFloat(word == 0u || exponent < 1 ? 0u : uint(exponent) << 23 | word & 0x007fffffu);
}

// The factor of differences from the mean, of values that are `by` times too large.
float scale_of(float variance, float eps, float by) { return rate_of(variance, eps_for(eps, by)); }

// x * by before anything else: a driver may multiply `by` by a later factor first, which may be infinite.
float times(float x, float by) {
    precise const float product = x * by;
    return product;
}
vec4 times(vec4 x, float by) {
    precise const vec4 product = x * by;
    return product;
}
