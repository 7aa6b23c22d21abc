// result[m, n] = sum over k of a[m, k] * b[n, k] (+ bias) for few rows m, of quantized weights b (quant_block.glsl).
// One workgroup is one subgroup of SUBGROUP_SIZE; it computes ROWS rows and 4 * SUBGROUP_SIZE columns, each lane four of them. Each value of a is loaded
// by one lane and handed to all. For CPU drivers, which load lane by lane: a head is read once a tile.
// Codes are not shifted: a mask leaves a code at its place in a word, and values of a are made smaller by the power of two by which
// that number is larger. (So values of a under 2^-96 may count as 0.)
// WORDS_64: for drivers that read words of 64 bits (llvmpipe, SUBGROUP_SIZE 8).
// Source: none.
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_shuffle : require
layout(local_size_x = 8, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#ifdef WORDS_64
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#define SUBGROUP_SIZE 8
#else
#define SUBGROUP_SIZE 4
#define SLOW_SHIFTS
#endif
#define WHOLE_TILES
#define IN_PLACE
#include "quant_formats.glsl"
#define T float
#define T4 vec4
#define LOAD LOADED
#include "load_vec4.glsl"
#include "matmul.glsl"
VIEWS(1, b)
#if SUBGROUP_SIZE == 8 && LOW == 2 && ROWS == 1
#define TWO_RUNS // such formats have whole tiles
#endif
#include "quant_block.glsl"

#if ROWS == 1
#define EACH_ROW(F, q) F(0, q)
#elif ROWS == 2
#define EACH_ROW(F, q) F(0, q) F(1, q)
#else
#define EACH_ROW(F, q) F(0, q) F(1, q) F(2, q) F(3, q)
#endif
#define EACH_FOUR(F, i) F(i, 0) F(i, 1) F(i, 2) F(i, 3) F(i, 4) F(i, 5) F(i, 6) F(i, 7)
#define EACH_COLUMN(F) F(x) F(y) F(z) F(w)

// A number at its place in a word; that in the highest bits is not taken for a negative one.
#define PLACED(words, mask) (uvec4(mask).w >= 0x80000000u ? vec4((words) & (mask)) : vec4(ivec4((words) & (mask))))
#define TWOS uvec4(3u, 12u, 48u, 192u)
#if defined(FLOATS) || defined(TABLE)
#define PLACE_OF(q) 0u
#elif defined(IN_PLACE) && LOW == 4
#define PLACE_OF(q) 4u * (q)
#elif LOW == 8
#define PLACE_OF(q) 8u * ((q) & 3u)
#else
#define PLACE_OF(q) 8u * ((q) / 2u)
#endif
#if defined(FLOATS)
#define WORDS_OF(q) ((q) < 2 ? run.low : (q) < 4 ? run.more : (q) < 6 ? run.third : run.last)
#define CODES_OF(q) floats_of(((q) & 1) == 0 ? WORDS_OF(q).xy : WORDS_OF(q).zw)
#elif defined(TABLE) && SUBGROUP_SIZE == 8
#define CODES_OF(q) looked_up(run.low >> 4 * (q), run.low & 8u << 4 * (q), q)
#elif defined(MXFP4)
#define SIZES_OF(q) ((q) < 6 ? run.low * (1u << max(22 - 4 * (q), 0)) : lower * (1u << min(30 - 4 * (q), 6)))
#define CODES_OF(q) numbers_of((SIZES_OF(q)) & 0x1c00000u, run.low * (1u << 28 - 4 * (q)) & 0x80000000u)
#elif defined(TABLE)
#define CODES_OF(q) NUMBERS_OF(PLACED(run.low, 15u << 4 * (q)), 1.0 / float(1u << 4 * (q)))
#elif defined(IN_PLACE) && LOW == 4
#define CODES_OF(q) PLACED(run.low, 15u << 4 * (q))
#elif defined(IN_PLACE)
#define CODES_OF(q) PLACED(uvec4(run.low[(q) % 2]), TWOS << 8 * ((q) / 2))
#define COLUMN_PLACES * vec4(1.0, 0.25, 0.0625, 0.015625)
#elif LOW == 8
#define CODES_OF(q) PLACED(((q) < 4 ? run.low : run.more), 255u << 8 * ((q) & 3))
#else
#define CODES_OF(q) PLACED(((q) % 2 == 0 ? run.low : run.more), 255u << 8 * ((q) / 2))
#endif

#if defined(MXFP4) && SUBGROUP_SIZE == 4
#define LOWER const uvec4 lower = run.low >> 8;
#else
#define LOWER
#endif

// Of a row of a, for a run: each lane has a four (SUBGROUP_SIZE 8), or two (SUBGROUP_SIZE 4).
#if SUBGROUP_SIZE == 8
#define BROADCAST subgroupShuffle
#define LOAD_ROW(i) vec4 first##i = as_vec4(a[a_at##i + lane]), second##i = first##i;
#else
#define BROADCAST subgroupBroadcast
#define LOAD_ROW(i) \
    vec4 first##i = as_vec4(a[a_at##i + lane]), second##i = as_vec4(a[a_at##i + 4u + lane]);
#endif
#if defined(FLOATS) || defined(TABLE)
#define MAKE_SMALLER(i)
#else
#define MAKE_SMALLER(i) first##i *= smaller_first; second##i *= smaller_second;
#endif
#define HANDED(first, second, q) BROADCAST((q) < SUBGROUP_SIZE ? first : second, (q) & (SUBGROUP_SIZE - 1))
#define TAKE_FOUR(i, q) const vec4 left##i##_##q = HANDED(first##i, second##i, q);
// Sums of values of a over what has one scale.
#ifdef SUMS
#define SUM_ROW(i) const vec2 all##i = sums_of(total(first##i), total(second##i));
#define SHIFT_OF(i) + dot(all##i, shift)
#else
#define SUM_ROW(i)
#define SHIFT_OF(i)
#endif
#define START_ROW(i, q) \
    vec4 sum##i = vec4(0.0); \
    uint a_at##i = (a_offset + from + min(i, m - 1u - row) * a_row) / 4u;
#define TAKE_ROW(i, q) \
    LOAD_ROW(i) \
    SUM_ROW(i) \
    MAKE_SMALLER(i) \
    EACH_FOUR(TAKE_FOUR, i) \
    a_at##i += 8u;

#if SUBGROUP_SIZE == 8
#define PART vec4
#define PRODUCT(x, y) (x) * (y)
#define TOTAL(part) total(part)
#else
#define PART float
#define PRODUCT(x, y) dot(x, y)
#define TOTAL(part) part
#endif
#define DECLARE(i, q) PART part##i;
#define PART_OF(i, q) PRODUCT(left##i##_##q, codes)
#define CODES(q) const vec4 codes = CODES_OF(q);
#define MULTIPLY(i, q) part##i += PART_OF(i, q);
#define BEGIN(i, q) part##i = PART_OF(i, q);
#define GO_ON(q) { CODES(q) EACH_ROW(MULTIPLY, q) }
#define BEGIN_WITH(q) { CODES(q) EACH_ROW(BEGIN, q) }
#define FINISH_0(i, c) sum##i.c += TOTAL(part##i) * scale.x SHIFT_OF(i);
#define FINISH_1(i, c) sum##i.c += TOTAL(part##i) * scale.y;
#if PARTS == 1
#define BETWEEN(c) GO_ON(4)
#define AT_END(i, c) FINISH_0(i, c)
#else
#define BETWEEN(c) EACH_ROW(FINISH_0, c) BEGIN_WITH(4)
#define AT_END(i, c) FINISH_1(i, c)
#endif
#if SUBGROUP_SIZE == 8 && LOW <= 4
// The words of a column are loaded before the one in front of it is multiplied: processors do both at once.
#define ADD_RUN(LOAD) \
    const Spot spot = spot_of(number); \
    LOAD(x) \
    EACH_ROW(TAKE_ROW, 0) \
    LOAD(y) ADD_COLUMN(x) LOAD(z) ADD_COLUMN(y) LOAD(w) ADD_COLUMN(z) ADD_COLUMN(w)
#else
#define ADD_RUN(LOAD) \
    const Spot spot = spot_of(number); \
    EACH_ROW(TAKE_ROW, 0) \
    EACH_COLUMN(ADD_COLUMN)
#define RUN_OF(c) run_of(head_##c, at.c, number)
#endif
#define LOAD_RUN(c) const Run run_##c = run_of(head_##c, at.c, number);
#ifdef TWO_RUNS
#define STEP 2u
#define ADD_STEP(first) \
    { const uint number = first; const bool odd = false; ADD_RUN(LOAD_TWOS) \
      { const uint number = first + 1u; const bool odd = true; ADD_RUN(LEAVE) } }
#define LOAD_TWOS(c) const uvec4 twos_##c = twos_of_runs(at.c, number);
#define LEAVE(c)
#define RUN_OF(c) run_of(head_##c, at.c, number, twos_##c, odd)
#else
#define STEP 1u
#define ADD_STEP(first) { const uint number = first; ADD_RUN(LOAD_RUN) }
#ifndef RUN_OF
#define RUN_OF(c) run_##c
#endif
#endif
#define START_COLUMN(c) const Head head_##c = head_of(start.c, tile_of_k, at.c);
#define ADD_COLUMN(c) { \
    const Scales scales = scales_of(head_##c, spot); \
    const vec2 scale = scales.scale, shift = shift_of_codes(scales); \
    const Run run = RUN_OF(c); \
    LOWER \
    EACH_ROW(DECLARE, 0) \
    BEGIN_WITH(0) GO_ON(1) GO_ON(2) GO_ON(3) BETWEEN(c) GO_ON(5) GO_ON(6) GO_ON(7) \
    EACH_ROW(AT_END, c) }
#define STORE_ROW(i, q) store4(result_offset, row + i, column, sum##i);

float total(vec4 x) { return x.x + x.y + (x.z + x.w); }

// Of both halves of a run, of what lanes have of them.
vec2 sums_of(float first, float second) {
    const uint lane = gl_SubgroupInvocationID;
#if SUBGROUP_SIZE == 8
    first += subgroupShuffle(first, lane ^ 1u);
    first += subgroupShuffle(first, lane ^ 2u);
    const vec2 both = vec2(subgroupShuffle(first, 0), subgroupShuffle(first, 4));
#else
    vec2 both = vec2(first, second);
    both += subgroupShuffle(both, lane ^ 1u);
    both += subgroupShuffle(both, lane ^ 2u);
#endif
#if PARTS == 1
    return vec2(both.x + both.y, 0.0);
#else
    return both;
#endif
}

#if defined(TABLE) && SUBGROUP_SIZE == 8
float table_low, table_high;

vec4 looked_up(float table, uvec4 at) {
    return vec4(subgroupShuffle(table, at.x), subgroupShuffle(table, at.y), subgroupShuffle(table, at.z), subgroupShuffle(table, at.w));
}

vec4 looked_up(uvec4 shifted, uvec4 high, uint q) {
    const uvec4 at = shifted & 7u;
#ifdef MXFP4
    return uintBitsToFloat(floatBitsToUint(looked_up(table_low, at)) ^ high << 28u - 4u * q);
#else
    return mix(looked_up(table_low, at), looked_up(table_high, at), notEqual(high, uvec4(0u)));
#endif
}
#endif

#ifndef COLUMN_PLACES
#define COLUMN_PLACES
#endif
// The factor of a vec4 of a whose codes are at a place.
vec4 smaller(uint place) { return vec4(uintBitsToFloat(127u - place << 23)) COLUMN_PLACES; }

void main() {
    const uint lane = gl_SubgroupInvocationID;
    const uint column = (gl_WorkGroupID.y * SUBGROUP_SIZE + lane) * 4u;
    const uint tile = gl_WorkGroupID.x * batches + gl_WorkGroupID.z;
    const uint row = tile * ROWS;
    const uint from = gl_WorkGroupID.x * a_batch[0] + gl_WorkGroupID.z * a_batch[1];
    const uvec2 matrix = matrix_of_tile(tile);
    const vec4 smaller_first = smaller(PLACE_OF(lane)), smaller_second = smaller(PLACE_OF(lane + 4u));
    const uvec4 start = (matrix.x + min(column + uvec4(0u, 1u, 2u, 3u), uvec4(n - 1u)) * b_column) / UNIT;
#if defined(TABLE) && SUBGROUP_SIZE == 8
    table_low = numbers_of(uvec4(lane)).x;
    table_high = numbers_of(uvec4(lane + 8u)).x;
#endif
    EACH_ROW(START_ROW, 0)
    const uint all_runs = matrix.y / 32u;
    for (uint tile_of_k = 0u; tile_of_k * 8u < all_runs; ++tile_of_k) {
        const uvec4 at = start + units_before(tile_of_k);
        const uint runs = min(all_runs - tile_of_k * 8u, 8u);
        EACH_COLUMN(START_COLUMN)
        for (uint first = 0u; first < runs; first += STEP) ADD_STEP(first)
    }
    EACH_ROW(STORE_ROW, 0)
}
