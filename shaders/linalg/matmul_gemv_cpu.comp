#version 450
// result[m, n] = sum over k of a[m, k] * b[k, n] (+ bias), for every matrix of a batch, of few rows; a lies along k.
// One workgroup is one subgroup of SUBGROUP_SIZE; it computes ROWS rows and SUBGROUP_SIZE * 4 * VEC4S_PER_LANE columns, each lane VEC4S_PER_LANE times four columns.
// The lanes load 4 * SUBGROUP_SIZE steps of a row at once and shuffles hand them to all; every value of b is loaded once. For CPU drivers.
// Source: none.
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_shuffle : require
layout(local_size_x = 8, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#ifndef B_ALONG_N
layout(constant_id = 3) const uint B_ALONG_N = 1;
#endif
#ifdef WORDS_64
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#endif
#define T float
#define T4 vec4
#include "matmul_load_vec4.glsl"
#include "matmul_subgroup.glsl"

#if ROWS == 1
#define EACH_ROW(F, w) F(0, w)
#else
#define EACH_ROW(F, w) F(0, w) F(1, w) F(2, w) F(3, w)
#endif
#if VEC4S_PER_LANE == 1
#define EACH_VEC4(F) F(0)
#elif VEC4S_PER_LANE == 4
#define EACH_VEC4(F) F(0) F(1) F(2) F(3)
#else
#define EACH_VEC4(F) \
    F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7) F(8) F(9) F(10) F(11) F(12) F(13) F(14) F(15)
#endif
#define START_ROW(i, w) const uint a_at##i = (at.x + min(row + i, m - 1u) * a_row) / 4u;
#define START_SUM(i, w) T4 sum##i##_##w = T4(0);
#define START_VEC4(w) \
    uvec4 b_at##w = place_b(at.y, column + w * SUBGROUP_SIZE * 4u); \
    EACH_ROW(START_SUM, w)
#define LOAD_ROW(i, w) const T4 a##i = as_vec4(a[a_at##i + min(step + gl_SubgroupInvocationID, steps - 1u)]);
#define TAKE_ROW(i, w) const T4 left##i = subgroupShuffle(a##i, j);
#define ADD_ROW(i, w) sum##i##_##w += now * left##i;
#define ADD_VEC4(w) { \
    const mat4 now = load_b(b_at##w); \
    b_at##w += advance; \
    EACH_ROW(ADD_ROW, w) }
#define KEEP_ROW(i, w) done[i * VEC4S_PER_LANE + w] = sum##i##_##w + shift##w;
#define KEEP_VEC4(w) \
    const T4 shift##w = bias_of_columns(column + w * SUBGROUP_SIZE * 4u); \
    EACH_ROW(KEEP_ROW, w)

void compute_tile(uvec4 at, uint row, uint column) {
    EACH_ROW(START_ROW, 0)
    EACH_VEC4(START_VEC4)
    const uint advance = B_ALONG_N != 0u ? b_row : 1u;
    const uint steps = at.w / 4u;
#if SUBGROUP_SIZE == 4 && ROWS == 1
    // SwiftShader takes longer over a shuffle, and a loop in a loop, than over one more load.
    for (uint step = 0u; step < steps; ++step) {
        sum0_0 += load_b(b_at0 + step * advance) * as_vec4(a[a_at0 + step]);
    }
#else
    for (uint step = 0u; step < steps; step += SUBGROUP_SIZE) {
        EACH_ROW(LOAD_ROW, 0)
        const uint here = min(SUBGROUP_SIZE, steps - step);
        for (uint j = 0u; j < here; ++j) {
            EACH_ROW(TAKE_ROW, 0)
            EACH_VEC4(ADD_VEC4)
        }
    }
#endif
#ifdef WHOLE
    // n is of whole groups and nothing was summed before; with other loops and branches SwiftShader's code for the one above
    // takes 1.15 times as long.
    write_vec4(at.z + column, sum0_0 + bias_of_columns(column));
#else
    T4 done[ROWS * VEC4S_PER_LANE];
    EACH_VEC4(KEEP_VEC4)
    const uint stores = min(ROWS, m - row) * VEC4S_PER_LANE;
    STORE_TILE(at.z, row, column, done, stores, VEC4S_PER_LANE, SUBGROUP_SIZE * 4u)
#endif
}

// Groups that follow each other share columns of b, which then stay in a cache, and a is read along its lines.
// No loop over tiles, in which CPU drivers would guard every variable by a mask, and take seconds to compile that.
void main() {
    const uint column = gl_WorkGroupID.y * SUBGROUP_SIZE * 4u * VEC4S_PER_LANE + gl_SubgroupInvocationID * 4u;
    compute_tile(matrices(gl_WorkGroupID.z), gl_WorkGroupID.x * ROWS, column);
}
