// Weights of few bits, as vksched/ops/products/block_layout.py lays them out: rows of tiles of 256 values, each a head with scales and
// then the high and low bits of eight runs of 32. One format is defined, as Q4_K.
// The shader has such a weight as b, of PAIRs of words, and SINGLE_WORDS of it.
// HEAD: words of a head. LOW, HIGH: bits of codes. ZERO: what is subtracted from them. SIGNED: they are in two's complement, so
// that nothing needs to be; SIGN_BITS make them others.
// MASKS: for drivers that take long over shifts (SwiftShader).
// TABLE: four words of numbers of 8 bits, for which codes stand. SHIFTS: values are scale * code + shift.
// FLOATS: values are floats of 16 bits, in order, without a head.
#if defined(F16) || defined(BF16)
#define HEAD 0u
#define LOW 16
#define FLOATS
#elif defined(Q8_0)
#define HEAD 4u
#define LOW 8
#define ZERO 128
#define SIGNED
#define SIGN_BITS 0x80808080u
#define SCALES_OF_RUNS
#elif defined(Q4_0)
#define HEAD 4u
#define LOW 4
#define ZERO 8
#define SIGNED
#define SIGN_BITS 0x88888888u
#define SCALES_OF_RUNS
#elif defined(Q4_1)
#define HEAD 8u
#define LOW 4
#define SHIFTS
#elif defined(Q5_0)
#define HEAD 4u
#define LOW 4
#define HIGH 1
#define ZERO 16
#define SCALES_OF_RUNS
#elif defined(Q5_1)
#define HEAD 8u
#define LOW 4
#define HIGH 1
#define SHIFTS
#elif defined(Q2_K)
#define HEAD 6u
#define LOW 2
#define SHIFTS
#elif defined(Q3_K)
#define HEAD 4u
#define LOW 2
#define HIGH 1
#define ZERO 4
#elif defined(Q4_K)
#define HEAD 4u
#define LOW 4
#define SHIFTS
#elif defined(Q5_K)
#define HEAD 4u
#define LOW 4
#define HIGH 1
#define SHIFTS
#elif defined(Q6_K)
#define HEAD 6u
#define LOW 4
#define HIGH 2
#define ZERO 32
#elif defined(IQ4_NL)
#define HEAD 4u
#define LOW 4
#define TABLE uvec4(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u)
#define SCALES_OF_RUNS
#elif defined(IQ4_XS)
#define HEAD 2u
#define LOW 4
#define TABLE uvec4(0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u)
#elif defined(MXFP4)
#define HEAD 2u
#define LOW 4
#define TABLE uvec4(0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu)
#endif
#ifndef HIGH
#define HIGH 0
#endif
#ifndef ZERO
#define ZERO 0
#endif
const uint TILE_WORDS = HEAD + 8u * (LOW + HIGH);

// 32 values: columns of eight entries, entry 0 in the lowest bits. scale and shift: of the first 16 values, and of the others.
struct Run {
    uint at; // of FLOATS: where they start
    uvec4 low;
    uvec4 more; // of LOW 8 the entries from 4 on
    uvec4 high;
    vec2 scale;
    vec2 shift;
};

uvec2 two_words(uint at) { return words(b[at / 2u]); }
uint one_word(uint at) { return PAIR_WORD(b, at); }
// Four columns of 16 bits, and of 8.
uvec4 columns_of(uvec2 two) { return uvec4(two.x, two.x >> 16, two.y, two.y >> 16); }
uvec4 columns_of(uint one) { return uvec4(one, one >> 8, one >> 16, one >> 24); }
// A number of so many bits, from one on.
float whole_of(uint word, uint from, uint bits) { return float(int(word >> from & (1u << bits) - 1u)); }

#include "half_of.glsl"

void read_scales(inout Run run, uint at, uint number) {
    run.shift = vec2(0.0);
#if defined(FLOATS)
    run.scale = vec2(1.0);
#elif defined(SCALES_OF_RUNS)
    run.scale = vec2(half_of(one_word(at + number / 2u) >> 16u * (number & 1u)));
#elif defined(Q4_1) || defined(Q5_1)
    const uint both = one_word(at + number);
    run.scale = vec2(half_of(both));
    run.shift = vec2(half_of(both >> 16));
#elif defined(Q4_K) || defined(Q5_K)
    const uvec2 first = two_words(at), second = two_words(at + 2u);
    const uint from = 4u * number;
    const uint high = second.y >> from;
    const uint scale = first.y >> from & 15u | (high & 3u) << 4;
    const uint least = second.x >> from & 15u | (high & 12u) << 2;
    run.scale = vec2(half_of(first.x) * float(int(scale)));
    run.shift = vec2(-(half_of(first.x >> 16) * float(int(least))));
#elif defined(Q6_K)
    const int two = int(one_word(at + number / 2u) << 16u * (1u - (number & 1u)));
    run.scale = half_of(one_word(at + 4u)) * vec2(ivec2(two << 8, two) >> 24);
#elif defined(Q2_K)
    const uint two = one_word(at + number / 2u) >> 16u * (number & 1u);
    const uint both = one_word(at + 4u);
    run.scale = half_of(both) * vec2(whole_of(two, 0u, 4u), whole_of(two, 8u, 4u));
    run.shift = -(half_of(both >> 16) * vec2(whole_of(two, 4u, 4u), whole_of(two, 12u, 4u)));
#elif defined(Q3_K)
    const uint low = one_word(at + number / 4u) >> 8u * (number & 3u);
    const uint high = one_word(at + 2u) >> 4u * number;
    const uvec2 both = uvec2(low, low >> 4) & 15u | (uvec2(high, high >> 2) & 3u) << 4;
    run.scale = half_of(one_word(at + 3u)) * vec2(ivec2(both) - 32);
#elif defined(IQ4_XS)
    const uvec2 head = two_words(at);
    const uint scale = head.y >> 4u * number & 15u | (head.x >> 16u + 2u * number & 3u) << 4;
    run.scale = vec2(half_of(head.x) * float(int(scale) - 32));
#elif defined(MXFP4)
    const uint power = one_word(at + number / 4u) >> 8u * (number & 3u) & 255u;
    run.scale = vec2(uintBitsToFloat(power < 2u ? 0x00200000u << power : power - 1u << 23));
#endif
}

// Run `number` of a row that starts at a word.
Run run_of(uint row, uint number) {
    const uint at = row + number / 8u * TILE_WORDS;
    const uint own = number % 8u;
    Run run;
    read_scales(run, at, own);
#if HIGH == 1
    run.high = columns_of(one_word(at + HEAD + own));
#elif HIGH == 2
    run.high = columns_of(two_words(at + HEAD + 2u * own));
#endif
    const uint low = at + HEAD + 8u * HIGH + LOW * own;
#if defined(FLOATS)
    run.at = low;
#elif LOW == 2
    run.low = columns_of(two_words(low));
#elif LOW == 4
    run.low = uvec4(two_words(low), two_words(low + 2u));
#else
    const uvec2 x = two_words(low), y = two_words(low + 2u), z = two_words(low + 4u), w = two_words(low + 6u);
    run.low = uvec4(x.x, y.x, z.x, w.x);
    run.more = uvec4(x.y, y.y, z.y, w.y);
#endif
#if defined(MASKS) && defined(SIGNED)
    run.low ^= SIGN_BITS;
#if LOW == 8
    run.more ^= SIGN_BITS;
#endif
#endif
    return run;
}

#ifdef TABLE
// By selections, no branches, over which SwiftShader's compiler takes minutes.
ivec4 numbers_of(uvec4 codes) {
    const uvec4 all = TABLE;
    const bvec4 second = notEqual(codes & 4u, uvec4(0u));
    const uvec4 low = mix(uvec4(all.x), uvec4(all.y), second);
    const uvec4 high = mix(uvec4(all.z), uvec4(all.w), second);
    const uvec4 four = mix(low, high, greaterThan(codes, uvec4(7u)));
    return ivec4(four << 24u - 8u * (codes & 3u)) >> 24;
}
#endif

#ifdef MASKS
// Entry i of four columns, of so many bits: those of the word itself, as a number, which a power of two makes smaller.
vec4 entries_of(uvec4 columns, uint bits, uint i) {
    const uint last = uint(bits * (i + 1u) == 32u); // its highest bit would be a sign
    const uint from = bits * (i - last);
    return vec4(ivec4(columns >> bits * last & ((1u << bits) - 1u) << from)) * uintBitsToFloat(127u - from << 23);
}
#endif

// Codes 4 * i to 4 * i + 3 of a run, as numbers.
vec4 codes_of(Run run, uint i) {
#if defined(F16)
    const uvec2 two = two_words(run.at + 2u * i);
    return vec4(unpackHalf2x16(two.x), unpackHalf2x16(two.y));
#elif defined(BF16)
    const uvec2 two = two_words(run.at + 2u * i);
    return uintBitsToFloat(uvec4(two.x << 16, two.x & 0xffff0000u, two.y << 16, two.y & 0xffff0000u));
#elif defined(MASKS) && !defined(TABLE)
#if LOW == 8
    return entries_of(i < 4u ? run.low : run.more, 8u, i & 3u) - float(ZERO);
#elif HIGH > 0
    return entries_of(run.low, LOW, i) + entries_of(run.high, HIGH, i) * float(1u << LOW) - float(ZERO);
#else
    return entries_of(run.low, LOW, i) - float(ZERO);
#endif
#elif LOW == 8
    return vec4(ivec4((i < 4u ? run.low : run.more) << 24u - 8u * (i & 3u)) >> 24);
#elif defined(SIGNED)
    return vec4(ivec4(run.low << 28u - 4u * i) >> 28);
#else
    uvec4 codes = run.low >> LOW * i & (1u << LOW) - 1u;
#if HIGH > 0
    codes |= (run.high >> HIGH * i & (1u << HIGH) - 1u) << LOW;
#endif
#ifdef TABLE
    return vec4(numbers_of(codes));
#else
    return vec4(ivec4(codes) - ZERO);
#endif
#endif
}

// Values 4 * i to 4 * i + 3 of a run.
vec4 values_of(Run run, uint i) {
#ifdef FLOATS
    return codes_of(run, i);
#endif
    const uint side = i / 4u;
    const vec4 values = codes_of(run, i) * run.scale[side];
#ifdef SHIFTS
    return values + run.shift[side];
#else
    return values; // -0 stays -0
#endif
}
