// Runs of quantized weights as GPUs read them: words first, all that a run needs, then codes two at a time, as float16.
// A pair of codes is two halves of a word, 1024 + a multiple of a code, extracted by masks in place; x is divided by it (places_of). Pair (i, c): of entries FIRST_OF(i) and SECOND_OF(i) of column c; of floats, word 4 * i + c of a run, which has the values of both entries.
const uint RUN = 32u;
#define FRONT (HEAD - TAIL)
const uint TILE_UNITS = (FRONT + 8u * (LOW + HIGH)) / 4u;
#if defined(SCALES_OF_RUNS) || defined(Q4_1) || defined(Q5_1) || defined(Q2_K) || defined(Q6_K) || defined(MXFP4)
#define SCALE_WORD
#elif HEAD > 0 && !defined(IQ4_XS)
#define SCALE_WORDS
#endif
#ifdef FLOATS
#define FIRST_OF(i) (2u * (i))
#define SECOND_OF(i) (2u * (i) + 1u)
#elif LOW == 8
#define FIRST_OF(i) ((i) + (i) / 2u * 2u)
#define SECOND_OF(i) (FIRST_OF(i) + 2u)
#else
#define FIRST_OF(i) (i)
#define SECOND_OF(i) ((i) + 4u)
#endif

// tail: of the head. scales, scale: words of the head, or the one with the scales of this run.
struct Run {
    uvec2 tail;
    uvec4 scales;
    uint scale;
    uvec2 high;
    uvec4 low[LOW == 16 ? 4 : LOW == 8 ? 2 : 1];
};

#if TAIL > 0
uint units_before(uint tile) { return tile * TILE_UNITS + tile / 2u + 1u; }
uint pairs_before(uint tile) { return tile / 2u * (4u * TILE_UNITS + 2u) + tile % 2u; }
#define LOAD_TAIL(BUFFER) const uint pair = 2u * start + pairs_before(tile);
#else
uint units_before(uint tile) { return tile * TILE_UNITS; }
#define LOAD_TAIL(BUFFER)
#endif
#if defined(MXFP4)
#define LOAD_HEAD(BUFFER) loaded.scale = BUFFER##_words[2u * pair + number / 4u];
#elif defined(Q2_K) || defined(Q6_K)
#define LOAD_HEAD(BUFFER) loaded.tail.x = BUFFER##_words[2u * pair]; loaded.scale = BUFFER##_words[4u * at + number / 2u];
#elif defined(IQ4_XS)
#define LOAD_HEAD(BUFFER) loaded.tail = BUFFER##_pairs[pair];
#elif defined(SCALES_OF_RUNS)
#define LOAD_HEAD(BUFFER) loaded.scale = BUFFER##_words[4u * at + number / 2u];
#elif defined(SCALE_WORD)
#define LOAD_HEAD(BUFFER) loaded.scale = BUFFER##_words[4u * at + number];
#elif defined(SCALE_WORDS)
#define LOAD_HEAD(BUFFER) loaded.scales = BUFFER[at];
#else
#define LOAD_HEAD(BUFFER)
#endif
#if HIGH == 1
#define LOAD_HIGH(BUFFER) loaded.high.x = BUFFER##_words[4u * at + FRONT + number];
#elif HIGH == 2
#define LOAD_HIGH(BUFFER) loaded.high = BUFFER##_pairs[2u * at + FRONT / 2 + number];
#else
#define LOAD_HIGH(BUFFER)
#endif
#if LOW == 2
#define LOAD_LOW(BUFFER) loaded.low[0].xy = BUFFER##_pairs[2u * at + FRONT / 2 + 4 * HIGH + number];
#else
#define LOAD_LOW(BUFFER) [[unroll]] for (uint i = 0u; i < LOW / 4u; ++i) { \
        loaded.low[i] = BUFFER[at + (FRONT + 8 * HIGH) / 4 + LOW / 4 * number + i]; }
#endif
// load_run_b, ...: the words of run `number` of a tile of a row of a weight that starts at a word.
#define DEFINE_LOAD(BUFFER) Run load_run_##BUFFER(uint row, uint tile, uint number) { \
        const uint start = row / 4u, at = start + units_before(tile); \
        Run loaded; \
        LOAD_TAIL(BUFFER) LOAD_HEAD(BUFFER) LOAD_HIGH(BUFFER) LOAD_LOW(BUFFER) \
        return loaded; }
DEFINE_LOAD(b)
DEFINE_LOAD(second)
DEFINE_LOAD(third)

vec2 halves(uint word) { return vec2(unpackFloat2x16(word)); }
uint packed(vec2 values) { return packFloat2x16(f16vec2(values)); }

// Of a run: values are scale * code + shift. x: of its first 16 values, y: of the others; or x of all, where PARTS is 1.
struct Scales {
    vec2 scale;
    vec2 shift;
};

// number: of the run in its tile.
Scales scales_of(Run run, uint number) {
    Scales scales = Scales(vec2(1.0), vec2(0.0));
    const int fours = int(4u * number), bytes = int(8u * (number % 4u)), twos = int(16u * (number % 2u));
#if defined(SCALES_OF_RUNS)
    scales.scale.x = halves(run.scale >> twos).x;
#elif defined(Q4_1) || defined(Q5_1)
    const vec2 both = halves(run.scale);
    scales.scale.x = both.x;
    scales.shift.x = both.y;
#elif defined(Q4_K) || defined(Q5_K)
    const vec2 of_all = halves(run.scales.x);
    const uint high = run.scales.w >> fours;
    scales.scale.x = of_all.x * float(bitfieldExtract(run.scales.y, fours, 4) | (high & 3u) << 4);
    scales.shift.x = -of_all.y * float(bitfieldExtract(run.scales.z, fours, 4) | (high << 2 & 48u));
#elif defined(Q6_K)
    const int two = int(run.scale >> twos);
    scales.scale = halves(run.tail.x).x * vec2(bitfieldExtract(two, 0, 8), bitfieldExtract(two, 8, 8));
#elif defined(Q2_K)
    const vec2 of_all = halves(run.tail.x);
    const uint two = run.scale >> twos;
    scales.scale = of_all.x * vec2(two & 15u, bitfieldExtract(two, 8, 4));
    scales.shift = -of_all.y * vec2(bitfieldExtract(two, 4, 4), bitfieldExtract(two, 12, 4));
#elif defined(Q3_K)
    const uint low = (number < 4u ? run.scales.x : run.scales.y) >> bytes, high = run.scales.z >> fours;
    scales.scale = halves(run.scales.w).x * (vec2(low & 15u | (high & 3u) << 4, bitfieldExtract(low, 4, 4) | (high << 2 & 48u)) - 32.0);
#elif defined(IQ4_XS)
    const uint code = bitfieldExtract(run.tail.y, fours, 4) | bitfieldExtract(run.tail.x, 16 + fours / 2, 2) << 4;
    scales.scale.x = halves(run.tail.x).x * float(int(code) - 32);
#elif defined(MXFP4)
    const uint power = bitfieldExtract(run.scale, bytes, 8);
    scales.scale.x = uintBitsToFloat(power < 2u ? 0x00200000u << power : power - 1u << 23) * 0.5; // of numbers twice as large
#endif
    return scales;
}

// What codes of pairs (i, 0) to (i, 3) are multiplied by where they lie in a half, and 1 / that.
#if LOW == 2
vec4 places_of(uint i) { return vec4(1.0, 4.0, 16.0, 64.0); }
vec4 inverse_places_of(uint i) { return vec4(1.0, 0.25, 0.0625, 0.015625); }
#elif LOW == 4 && !defined(TABLE)
vec4 places_of(uint i) { return vec4(i % 2u == 0u ? 1.0 : 16.0); }
vec4 inverse_places_of(uint i) { return vec4(i % 2u == 0u ? 1.0 : 0.0625); }
#else
vec4 places_of(uint i) { return vec4(1.0); }
vec4 inverse_places_of(uint i) { return vec4(1.0); }
#endif

uint moved(uint word, int up) { return up < 0 ? word >> -up : word << up; }

#if defined(TABLE) && !defined(MXFP4)
shared float numbers[16];
const float NUMBERS[16] = float[](
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0);
void fill_numbers() {
    for (uint i = gl_LocalInvocationIndex; i < 16u; i += gl_WorkGroupSize.x) numbers[i] = NUMBERS[i];
}
#else
void fill_numbers() {}
#endif

// Pair (i, c) of values before they are scaled: as a word of two halves, or as floats where they are none.
#if defined(BF16) || (defined(TABLE) && !defined(MXFP4))
#define PAIR_OF pair_of
vec2 pair_of(Run run, uint i, uint c) {
#ifdef BF16
    return uintBitsToFloat(uvec2(run.low[i][c] << 16, run.low[i][c] & 0xffff0000u));
#else
    const uint word = run.low[0][c];
    return vec2(numbers[bitfieldExtract(word, int(4u * i), 4)], numbers[bitfieldExtract(word, int(16u + 4u * i), 4)]);
#endif
}
#else
#define PAIR_OF(run, i, c) halves(word_of_pair(run, i, c))
uint word_of_pair(Run run, uint i, uint c) {
#if defined(F16)
    return run.low[i][c];
#elif defined(MXFP4)
    // As float16, a sign and two bits of an exponent that starts at 2, and a mantissa of one bit: 2, 3, 4, 6, 8, 12, 16, 24. The first two
    // are subnormal and stand for 0 and 2.
    const uint word = moved(run.low[0][c], 9 - 4 * int(i));
    const f16vec2 size = unpackFloat2x16(word & 0x0e000e00u | 0x40004000u);
    const uint whole = packFloat2x16(size + min(f16vec2(0.0hf), size - f16vec2(4.0hf)));
    return word << 3 & 0x80008000u | whole;
#else
#if LOW == 8
    const uint word = run.low[c / 2u][(c % 2u) * 2u + i / 2u];
    uint two = ((word ^ SIGN_BITS) >> 8u * (i % 2u)) & 0x00ff00ffu;
#elif LOW == 4
    uint two = run.low[0][c];
#if defined(SIGN_BITS)
    two ^= 0x88888888u;
#endif
    two = two >> 8u * (i / 2u) & 0x000f000fu << 4u * (i % 2u);
#if HIGH == 1
    two |= moved(run.high.x, 4 - int(c) - 8 * int(i / 2u)) & 0x00100010u << 4u * (i % 2u);
#elif HIGH == 2
    two |= moved(run.high[i % 2u], 4 + 4 * int(i % 2u) - 2 * int(c) - 8 * int(i / 2u)) & 0x00300030u << 4u * (i % 2u);
#endif
#else
    uint two = run.low[0][i % 2u] >> 8u * (i / 2u) & 0x00030003u << 2u * c;
#if HIGH == 1
    two |= moved(run.high.x, int(c) + 2 - 8 * int(i / 2u) - 4 * int(i % 2u)) & 0x00040004u << 2u * c;
#endif
#endif
    return two | 0x64006400u;
#endif
}
#endif
