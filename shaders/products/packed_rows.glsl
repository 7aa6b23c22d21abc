// result[m, n] = sum over k of a[m, k] * b[n, k] (+ bias) for few rows m, of weights b of few bits (packed.glsl).
// One group is one subgroup of LANES; it computes ROWS rows and 4 * LANES columns, each lane four of them. For CPU drivers: each
// value of a is loaded by one lane and handed to all, or by all at once where that costs no more (SwiftShader, LANES 4).
// WORDS_64: for drivers that read words of 64 bits (llvmpipe, LANES 8).
// Source: none.
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_shuffle : require
layout(local_size_x = 8, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#ifdef WORDS_64
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#define LANES 8u
#else
#define LANES 4u
#define MASKS
#endif
#define T float
#define T4 vec4
#define LOAD LOADED
#define LOAD_OF_B PAIR
#include "fours.glsl"
#include "matmul.glsl"
SINGLE_WORDS(1, readonly, b)
#include "packed.glsl"

#if ROWS == 1
#define EACH_ROW(F) F(0)
#else
#define EACH_ROW(F) F(0) F(1) F(2) F(3)
#endif
#define EACH_FOUR(F, i) F(i, 0) F(i, 1) F(i, 2) F(i, 3) F(i, 4) F(i, 5) F(i, 6) F(i, 7)
#define EACH_COLUMN(F) F(0, x) F(1, y) F(2, z) F(3, w)

// Written out, as CPU drivers keep indexed arrays in memory and not in registers.
#define START_ROW(i) \
    vec4 sum##i = vec4(0.0); \
    const uint a_at##i = (a_offset + from + min(i, m - 1u - row) * a_row) / 4u;
#ifdef WORDS_64
#define LOAD_ROW(i) const vec4 own##i = four(a[a_at##i + number * 8u + gl_SubgroupInvocationID]);
#define TAKE_FOUR(i, q) const vec4 left##i##_##q = subgroupShuffle(own##i, q);
#else
#define LOAD_ROW(i)
#define TAKE_FOUR(i, q) const vec4 left##i##_##q = four(a[a_at##i + number * 8u + q]);
#endif
#define TAKE_ROW(i) \
    LOAD_ROW(i) \
    EACH_FOUR(TAKE_FOUR, i)
#ifdef SHIFTS
#define SIDES_OF_ROW(i) \
    const vec2 all##i = vec2(total(left##i##_0 + left##i##_1 + (left##i##_2 + left##i##_3)), \
        total(left##i##_4 + left##i##_5 + (left##i##_6 + left##i##_7)));
#define SHIFT_OF(i) + dot(all##i, run.shift)
#else
#define SIDES_OF_ROW(i)
#define SHIFT_OF(i)
#endif
#define CODES(unused, q) const vec4 codes##q = codes_of(run, q);
#define ADD_ROW(i, c) sum##i.c += \
    total(left##i##_0 * codes0 + left##i##_1 * codes1 + left##i##_2 * codes2 + left##i##_3 * codes3) * run.scale.x + \
    total(left##i##_4 * codes4 + left##i##_5 * codes5 + left##i##_6 * codes6 + left##i##_7 * codes7) * run.scale.y \
    SHIFT_OF(i);
#if ROWS == 1
#define ADD_ROWS(c) ADD_ROW(0, c)
#else
#define ADD_ROWS(c) ADD_ROW(0, c) ADD_ROW(1, c) ADD_ROW(2, c) ADD_ROW(3, c)
#endif
#define ADD_COLUMN(j, c) { \
    const Run run = run_of(b_at.c, number); \
    EACH_FOUR(CODES, 0) \
    ADD_ROWS(c) }
#define STORE_ROW(i) store4(result_offset, row + i, column, sum##i);

float total(vec4 x) { return x.x + x.y + (x.z + x.w); }

void main() {
    const uint column = (gl_WorkGroupID.y * LANES + gl_SubgroupInvocationID) * 4u;
    const uint tile = gl_WorkGroupID.x * batches + gl_WorkGroupID.z;
    const uint row = tile * ROWS;
    const uint from = gl_WorkGroupID.x * a_batch[0] + gl_WorkGroupID.z * a_batch[1];
    const uvec2 matrix = matrix_of_tile(tile);
    const uvec4 b_at = matrix.x + min(column + uvec4(0u, 1u, 2u, 3u), uvec4(n - 1u)) * b_column;
    EACH_ROW(START_ROW)
    for (uint number = 0u; number < matrix.y / 32u; ++number) {
        EACH_ROW(TAKE_ROW)
        EACH_ROW(SIDES_OF_ROW)
        EACH_COLUMN(ADD_COLUMN)
    }
    EACH_ROW(STORE_ROW)
}
