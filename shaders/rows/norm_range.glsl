// Rows whose squares leave the range of float32: they are normed once more, multiplied by a power of two, and so are those that
// go together with them. That stands apart from the loops over rows, as CPU drivers go through both sides of a branch.

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

// What differences from the mean are multiplied by, of values that are `by` times too large.
float scale_of(float variance, float eps, float by) { return 1.0 / sqrt((variance < 0.0 ? 0.0 : variance) + eps * by * by); }
