// How quantized weights are read (quant_formats.glsl): heads, scales, codes.
// The shader has such a weight as b, of WORDS, and VIEWS of it. What one access of b reads is a unit. A
// shader that reads several weights defines UNIT_OF_B, PAIR_OF_B and WORD_OF_B, which read a unit, two words and a single one.
#ifndef UNIT_OF_B
#define UNIT_OF_B(unit) b[unit]
#define PAIR_OF_B(pair) b_pairs[pair]
#define WORD_OF_B(at) b_words[at]
#endif
#define UNIT 4
uvec4 four_words(uint unit) { return words(UNIT_OF_B(unit)); }
#ifdef HAS_PAIRS
uvec2 two_words(uint pair) { return words(PAIR_OF_B(pair)); }
#endif
#define FRONT (HEAD - TAIL)
const uint TILE_UNITS = (FRONT + 8u * (LOW + HIGH)) / UNIT;

// Units of a row before a tile, and pairs of words before its tail, which lies in front of a pair of tiles.
#if TAIL > 0
uint units_before(uint tile) { return tile * TILE_UNITS + tile / 2u + 1u; }
uint pairs_before(uint tile) { return tile / 2u * (4u * TILE_UNITS + 2u) + tile % 2u; }
#else
uint units_before(uint tile) { return tile * TILE_UNITS; }
#endif

// NATIVE_FP16: for devices that compute with float16.
#ifdef NATIVE_FP16
float decode_fp16(uint word) { return unpackHalf2x16(word).x; }
#else
#include "fp16_branchless.glsl"
#endif

uint word_of(uvec4 four, uint i) {
    const uvec2 two = mix(four.xy, four.zw, bvec2(i >= 2u));
    return mix(two.x, two.y, (i & 1u) != 0u);
}

// Run `number` of a tile, and where its numbers of four bits are in a word: the lowest bit, as a word and as one part of a float.
struct Spot {
    uint number;
    uint bit;
    float part;
};

Spot spot_of(uint number) { return Spot(number, 1u << 4u * number, uintBitsToFloat(127u - 4u * number << 23)); }

uint word_of(uvec4 first, uvec4 second, uint i) {
    return mix(word_of(first, i & 3u), word_of(second, i & 3u), i >= 4u);
}

// Words of a head, and the scales of its tile. highs: with WHOLE_TILES and HIGH 1, a word for each run.
struct Head {
    uvec4 four;
    uvec4 more;
    uvec4 highs[2];
    vec2 of_all;
};

// row: the unit where a row starts; at: that where the tile does, behind units_before(tile).
Head head_of(uint row, uint tile, uint at) {
    Head head;
#if FRONT > 0
    head.four = four_words(at);
#endif
#if TAIL > 0
    const uvec2 tail = two_words(2u * row + pairs_before(tile));
#endif
#if HEAD == 2
    head.four.xy = tail;
#elif HEAD == 8
    head.more = four_words(at + 1u);
#endif
#if HEAD == 6
    head.of_all = vec2(decode_fp16(tail.x), decode_fp16(tail.x >> 16));
#elif defined(Q4_K) || defined(Q5_K)
    head.of_all = vec2(decode_fp16(head.four.x), decode_fp16(head.four.x >> 16));
#elif defined(Q3_K)
    head.of_all.x = decode_fp16(head.four.w);
#elif defined(IQ4_XS)
    head.of_all.x = decode_fp16(head.four.x);
#endif
#if defined(WHOLE_TILES) && HIGH == 1
    head.highs[0] = four_words(at + FRONT / UNIT);
    head.highs[1] = four_words(at + (FRONT + 4) / UNIT);
#endif
    return head;
}

// Of a run: values are scale * code + shift. x: of its first 16 values, y: of the others; or x of all, where PARTS is 1.
struct Scales {
    vec2 scale;
    vec2 shift;
};

Scales scales_of(Head head, Spot spot) {
    Scales made;
    made.shift = vec2(0.0);
#if defined(FLOATS)
    made.scale = vec2(1.0);
#elif defined(SCALES_OF_RUNS)
    made.scale = vec2(decode_fp16(word_of(head.four, spot.number >> 1) >> 16u * (spot.number & 1u)));
#elif defined(Q4_1) || defined(Q5_1)
    const uint both = word_of(head.four, head.more, spot.number);
    made.scale = vec2(decode_fp16(both));
    made.shift = vec2(decode_fp16(both >> 16));
#elif defined(Q4_K) || defined(Q5_K)
    const uvec4 numbers = head.four.yzww & spot.bit * uvec4(15u, 15u, 3u, 12u);
    const vec4 parts = vec4(numbers) * spot.part;
    made.scale = vec2(head.of_all.x * (parts.x + 16.0 * parts.z));
    made.shift = vec2(-(head.of_all.y * (parts.y + 4.0 * parts.w)));
#elif defined(Q6_K)
    const uint two = word_of(head.four, spot.number >> 1) * ((spot.number & 1u) != 0u ? 1u : 0x10000u);
    made.scale = head.of_all.x * (vec2(ivec2(two * 0x100u, two) & ivec2(0xff000000)) * 5.9604644775390625e-8);
#elif defined(Q2_K)
    const uint two = word_of(head.four, spot.number >> 1) * ((spot.number & 1u) != 0u ? 1u : 0x10000u);
    const vec4 parts = vec4(two & uvec4(0xf0000u, 0xf000000u, 0xf00000u, 0xf0000000u)) /
        vec4(65536.0, 16777216.0, 1048576.0, 268435456.0);
    made.scale = head.of_all.x * parts.xy;
    made.shift = -(head.of_all.y * parts.zw);
#elif defined(Q3_K)
    const uint low = mix(head.four.x, head.four.y, spot.number >= 4u) >> 8u * (spot.number & 3u);
    const vec2 high = vec2(head.four.z & spot.bit * uvec2(3u, 12u)) * spot.part;
    made.scale = head.of_all.x * (vec2(low & 15u, low & 0xf0u) * vec2(1.0, 0.0625) + high * vec2(16.0, 4.0) - 32.0);
#elif defined(IQ4_XS)
    const uint scale = head.four.y >> 4u * spot.number & 15u | (head.four.x >> 16u + 2u * spot.number & 3u) << 4;
    made.scale = vec2(head.of_all.x * float(int(scale) - 32));
#elif defined(MXFP4)
    const uint power = mix(head.four.x, head.four.y, spot.number >= 4u) >> 8u * (spot.number & 3u) & 255u;
    made.scale = vec2(uintBitsToFloat(mix(power - 1u << 23, 0x00200000u << power, power < 2u)));
#endif
    return made;
}

// The offset of values from scale * code, if ZERO is not subtracted from codes.
vec2 shift_of_codes(Scales scales) { return scales.shift - float(ZERO) * scales.scale; }

// 32 codes, in columns: value 4 * i + c is entry i of column c. Bytes of `low` are entries 0, 2, 4 and 6 of a column, of `more` 1, 3,
// 5 and 7; of LOW 8 entries 0 to 3 and 4 to 7. With IN_PLACE words are as they lie. Floats are in low, more, third and last, in order.
struct Run {
    uvec4 low;
    uvec4 more;
    uvec4 third;
    uvec4 last;
};

// A word whose bits are moved up by a constant, or down by a negative one.
#define MOVED(word, by) ((by) < 0 ? (word) >> ((by) < 0 ? -(by) : 0) : (word) * (1u << ((by) < 0 ? 0 : (by))))
// Columns of bytes that have entries of all columns beside each other, moved up by so many bits.
uvec4 twos_of(uint word, int up) {
    return uvec4(MOVED(word, up), MOVED(word, up - 2), MOVED(word, up - 4), MOVED(word, up - 6)) & 0x3030303u << up;
}
uvec4 ones_of(uint word, int up) {
    return uvec4(MOVED(word, up), MOVED(word, up - 1), MOVED(word, up - 2), MOVED(word, up - 3)) & 0x1010101u << LOW;
}

#ifdef TWO_RUNS
// Words of two bits of a run and the next, which has an odd number, by one load.
uvec4 twos_of_runs(uint at, uint number) { return four_words(at + (FRONT + 8 * HIGH) / UNIT + number / 2u); }
#define LOADED_TWOS , uvec4 loaded, bool odd
#define TWO_OF_RUN(pair) (odd ? loaded.zw : loaded.xy)
#else
#define LOADED_TWOS
#define TWO_OF_RUN(pair) two_words(pair)
#endif

// Run `number` of the tile that starts at a unit.
Run run_of(Head head, uint at, uint number LOADED_TWOS) {
    Run run;
    const uint low = at + (FRONT + 8 * HIGH) / UNIT + LOW / UNIT * number;
#if LOW == 2
    const uvec2 twos = TWO_OF_RUN(2u * at + FRONT / 2 + 4 * HIGH + number);
#ifdef IN_PLACE
    run.low.xy = twos;
#else
    run.low = twos_of(twos.x, 0);
    run.more = twos_of(twos.y, 0);
#endif
#elif LOW == 4
    run.low = four_words(low);
#ifndef IN_PLACE
    run.more = run.low >> 4 & 0xf0f0f0fu;
    run.low &= 0xf0f0f0fu;
#endif
#elif LOW == 8
    const uvec4 first = four_words(low), second = four_words(low + 1u);
    run.low = uvec4(first.xz, second.xz);
    run.more = uvec4(first.yw, second.yw);
#else
    run.low = four_words(low);
    run.more = four_words(low + 1u);
    run.third = four_words(low + 2u);
    run.last = four_words(low + 3u);
#endif
#if HIGH == 1
#ifdef WHOLE_TILES
    const uint high = word_of(head.highs[0], head.highs[1], number);
#else
    const uint high = WORD_OF_B(at * UNIT + FRONT + number);
#endif
    run.low |= ones_of(high, LOW);
    run.more |= ones_of(high, LOW - 4);
#elif HIGH == 2
    const uvec2 high = two_words(2u * at + FRONT / 2 + number);
    run.low |= twos_of(high.x, LOW);
    run.more |= twos_of(high.y, LOW);
#endif
#ifdef SIGN_BITS
    run.low ^= SIGN_BITS;
    run.more ^= SIGN_BITS;
#endif
    return run;
}

#if defined(F16) && defined(SLOW_SHIFTS)
// As decode_fp16. shifted: the bits but the sign, from the 14th on.
vec4 floats_of(uvec4 shifted, uvec4 signs) {
    const vec4 values = uintBitsToFloat(shifted + 0x70000000u) * uintBitsToFloat(0x07800000u);
    return uintBitsToFloat(floatBitsToUint(values + min(vec4(0.0), values - 6.103515625e-5)) | signs);
}
vec4 floats_of(uvec2 two) {
    const uvec2 low = (two & 0x7fffu) * 0x2000u, high = uvec2(ivec2(vec2(ivec2(two & 0x7fff0000u)) * 0.125));
    const uvec4 signs = uvec4(two * 0x10000u, two) & 0x80000000u;
    return floats_of(uvec4(low, high), signs).xzyw;
}
#elif defined(F16)
vec4 floats_of(uvec2 two) { return vec4(unpackHalf2x16(two.x), unpackHalf2x16(two.y)); }
#elif defined(BF16)
vec4 floats_of(uvec2 two) {
    return uintBitsToFloat(uvec4(two.x * 0x10000u, two.x & 0xffff0000u, two.y * 0x10000u, two.y & 0xffff0000u));
}
#endif

#ifdef MXFP4
// Twice what a float of a sign, two bits of exponent and one more has: 0, 1, 2, 3, 4, 6, 8, 12. Without its subnormals it were 1
// and 1.5 instead of 0 and 1. sizes: the three bits, from the 22nd on. signs: the highest bit.
vec4 numbers_of(uvec4 sizes, uvec4 signs) {
    const vec4 size = uintBitsToFloat(sizes + 0x3f800000u);
    return uintBitsToFloat(floatBitsToUint(size + min(vec4(0.0), size - 2.0)) | signs);
}
// There is no -0.
vec4 numbers_of(uvec4 codes) {
    return numbers_of((codes & 7u) * 0x400000u, mix(uvec4(0u), uvec4(0x80000000u), greaterThan(codes, uvec4(8u))));
}
#elif defined(TABLE)
// -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113: the polynomial is 0.06 or more from the whole numbers
// beside it. Selections from a table take twice as many instructions. Codes are `part` of x, a power of two.
#define NUMBERS_OF(x, part) floor((((0.00158604 * (part) * (part) * (part) * (part) * (x) + 0.0310864 * (part) * (part) * (part)) * \
    (x) - 1.37193 * (part) * (part)) * (x) + 24.1738 * (part)) * (x) - 126.067)
vec4 numbers_of(uvec4 codes) { return NUMBERS_OF(vec4(codes), 1.0); }
#endif

// Values 4 * q to 4 * q + 3 of a run, before they are scaled.
vec4 codes_of(Run run, uint q) {
#if defined(FLOATS)
    const uvec4 four = q < 2u ? run.low : q < 4u ? run.more : q < 6u ? run.third : run.last;
    return floats_of(q % 2u == 0u ? four.xy : four.zw);
#else
#if LOW == 8
    const uvec4 codes = (q < 4u ? run.low : run.more) >> 8u * (q & 3u) & 255u;
#else
    const uvec4 codes = (q % 2u == 0u ? run.low : run.more) >> 8u * (q / 2u) & 255u;
#endif
#ifdef TABLE
    return numbers_of(codes);
#else
    return vec4(codes);
#endif
#endif
}

// Values 4 * q to 4 * q + 3 of a run.
vec4 values_of(Run run, Scales scales, uint q) {
#ifdef FLOATS
    return codes_of(run, q);
#endif
    const uint part = PARTS * q / 8u;
#if ZERO > 0
    const vec4 codes = codes_of(run, q) - float(ZERO);
#else
    const vec4 codes = codes_of(run, q);
#endif
#ifdef SHIFTS
    return codes * scales.scale[part] + scales.shift[part];
#else
    return codes * scales.scale[part]; // -0 stays -0
#endif
}
