// Products of runs of 32 codes of 8 bits by those of quantized weights, as integer dot products of words (OpSDot, 4450, of packed words,
// 6018 and 6019), whose sums are exact.
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6018, 6019], id = 4450)
int dot_of_words(int a, int b, spirv_literal int packed);

// Codes with a sign.
#ifdef Q8_0
#define SIGNED_OF(words) ivec4((words) ^ SIGN_BITS)
#define SHIFT_OF(scales) vec2(0.0)
#else
#define SIGNED_OF(words) ivec4(words)
#define SHIFT_OF(scales) shift_of_codes(scales)
#endif

int dot_i8x4(ivec4 x, ivec4 y) {
    return dot_of_words(x.x, y.x, 0) + dot_of_words(x.y, y.y, 0) + dot_of_words(x.z, y.z, 0) + dot_of_words(x.w, y.w, 0);
}

// sum + by * (sums of a run by its scales) + sums of x by its shifts.
float plus_run(float sum, vec2 dots, vec2 scale, float by, vec2 all, vec2 shift) {
#if PARTS == 2
    precise const float first = dots.x * scale.x;
    sum = fma(by, fma(dots.y, scale.y, first), sum);
#else
    precise const float scaled = dots.x * scale.x;
    sum = fma(by, scaled, sum);
#endif
#ifndef Q8_0
    sum = fma(all.x, shift.x, sum);
#if PARTS == 2
    sum = fma(all.y, shift.y, sum);
#endif
#endif
    return sum;
}

// Of a run: the sums of its halves, or of all of it and 0.
vec2 sums_of(ivec4 low, ivec4 more, uvec4 left_low, uvec4 left_more) {
#if PARTS == 2
    const uint half_of_words = 0xffffu;
    return vec2(
        dot_i8x4(low, ivec4(left_low & half_of_words)) + dot_i8x4(more, ivec4(left_more & half_of_words)),
        dot_i8x4(low, ivec4(left_low & ~half_of_words)) + dot_i8x4(more, ivec4(left_more & ~half_of_words))
    );
#else
    return vec2(dot_i8x4(low, ivec4(left_low)) + dot_i8x4(more, ivec4(left_more)), 0.0);
#endif
}
