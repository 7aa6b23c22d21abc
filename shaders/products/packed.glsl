// How weights of few bits are read (packed_formats.glsl): heads, scales, codes.
// The shader has such a weight as b, of WORDS or, without WHOLE_FOURS, PAIRs of words, and SINGLES of it. What one access of b reads
// is a unit. A shader that reads several weights defines UNIT_OF_B and WORD_OF_B, which read a unit and a single word.
#ifndef UNIT_OF_B
#define UNIT_OF_B(unit) b[unit]
#define WORD_OF_B(at) b_words[at]
#endif
#ifdef WHOLE_FOURS
#define UNIT 4
uvec4 four_words(uint unit) { return words(UNIT_OF_B(unit)); }
#else
#define UNIT 2
uvec2 two_words(uint unit) { return words(UNIT_OF_B(unit)); }
uvec4 four_words(uint unit) { return uvec4(two_words(unit), two_words(unit + 1u)); }
#endif
const uint TILE_UNITS = (HEAD + 8u * (LOW + HIGH)) / UNIT;

#include "half_of.glsl"

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

// at: the unit where a tile starts.
Head head_of(uint at) {
    Head head;
#if HEAD > 2
    head.four = four_words(at);
#elif HEAD == 2
    head.four.xy = two_words(at);
#endif
#if HEAD == 8
    head.more = four_words(at + 1u);
#elif HEAD == 6
    const uint both = two_words(at + 2u).x;
    head.of_all = vec2(half_of(both), half_of(both >> 16));
#elif defined(Q4_K) || defined(Q5_K)
    head.of_all = vec2(half_of(head.four.x), half_of(head.four.x >> 16));
#elif defined(Q3_K)
    head.of_all.x = half_of(head.four.w);
#elif defined(IQ4_XS)
    head.of_all.x = half_of(head.four.x);
#endif
#if defined(WHOLE_TILES) && HIGH == 1
    head.highs[0] = four_words(at + HEAD / UNIT);
    head.highs[1] = four_words(at + (HEAD + 4) / UNIT);
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
    made.scale = vec2(half_of(word_of(head.four, spot.number >> 1) >> 16u * (spot.number & 1u)));
#elif defined(Q4_1) || defined(Q5_1)
    const uint both = word_of(head.four, head.more, spot.number);
    made.scale = vec2(half_of(both));
    made.shift = vec2(half_of(both >> 16));
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

// What values have beside scale * code, where ZERO is not subtracted from codes.
vec2 shift_of_codes(Scales scales) { return scales.shift - float(ZERO) * scales.scale; }

// 32 codes, in columns: value 4 * i + c is entry i of column c. Bytes of `low` are entries 0, 2, 4 and 6 of a column, of `more` 1, 3,
// 5 and 7; of LOW 8 entries 0 to 3 and 4 to 7. With NIBBLES all eight are in `low`. Floats are in low, more, third and last, in order.
struct Run {
    uvec4 low;
    uvec4 more;
    uvec4 third;
    uvec4 last;
};

// Two columns of 16 bits in each word.
uvec4 columns_of(uvec2 two) { return uvec4(two.x & 0xffffu, two.x >> 16, two.y & 0xffffu, two.y >> 16); }
// Columns of eight entries of two bits: two entries in each byte.
uvec4 twos_of(uvec4 columns) {
    const uvec4 halves = (columns | columns * 0x100u) & 0xff00ffu;
    return (halves | halves * 0x10u) & 0xf0f0f0fu;
}

// Run `number` of the tile that starts at a unit.
Run run_of(Head head, uint at, uint number) {
    Run run;
    const uint low = at + (HEAD + 8 * HIGH) / UNIT + LOW / UNIT * number;
#if LOW == 2
    const uvec4 twos = twos_of(columns_of(two_words(low)));
    run.low = twos & 0x3030303u;
    run.more = twos >> 2 & 0x3030303u;
#elif LOW == 4
    run.low = four_words(low);
#ifndef NIBBLES
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
    const uint high = WORD_OF_B(at * UNIT + HEAD + number);
#endif
    // a product puts every second bit of eight, 6 bits apart again, in a byte of its own
    const uvec4 columns = uvec4(high, high >> 8, high >> 16, high >> 24);
    run.low |= (columns & 0x55u) * (0x41041u << LOW) & 0x1010101u << LOW;
    run.more |= (columns & 0xaau) * (0x41041u << LOW - 1) & 0x1010101u << LOW;
#elif HIGH == 2
    const uvec4 above = twos_of(columns_of(two_words(at + HEAD / 2 + number)));
    run.low |= above * 0x10u & 0x30303030u;
    run.more |= above * 4u & 0x30303030u;
#endif
#ifdef SIGN_BITS
    run.low ^= SIGN_BITS;
    run.more ^= SIGN_BITS;
#endif
    return run;
}

#if defined(F16) && defined(SLOW_SHIFTS)
// As half_of. shifted: the bits but the sign, from the 14th on.
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
// and 1.5 instead of 0 and 1. There is no -0.
vec4 numbers_of(uvec4 codes) {
    const vec4 size = uintBitsToFloat((codes & 7u) * 0x400000u + 0x3f800000u);
    const uvec4 signs = mix(uvec4(0u), uvec4(0x80000000u), greaterThan(codes, uvec4(8u)));
    return uintBitsToFloat(floatBitsToUint(size + min(vec4(0.0), size - 2.0)) | signs);
}
#elif defined(TABLE)
// -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113: the polynomial is 0.06 or more from the whole numbers
// beside it. Selections from a table take twice as many instructions.
vec4 numbers_of(vec4 x) {
    return floor((((0.00158604 * x + 0.0310864) * x - 1.37193) * x + 24.1738) * x - 126.067);
}
vec4 numbers_of(uvec4 codes) { return numbers_of(vec4(codes)); }
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
