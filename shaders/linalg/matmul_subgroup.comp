#version 450
// result[m, n] = sum over k of a[m, k] * b[k, n] (+ bias), for every matrix of a batch, read four elements at once.
// One workgroup is one subgroup of SUBGROUP_SIZE; it computes SUBGROUP_SIZE * ROW_BLOCKS rows and SUBGROUP_SIZE * 4 * VEC4S_PER_LANE columns, each lane VEC4S_PER_LANE times four
// columns of all rows. Each lane loads other values of a, and shuffles hand them to the rest. For CPU drivers: there every
// load takes one branch per lane and value, and a shuffle is one instruction.
// A_ALONG_K and B_ALONG_N are defined for drivers that go through both sides of a branch over a constant, too (SwiftShader).
// Source: Goto and van de Geijn, Anatomy of high-performance matrix multiplication, 2008 (the register kernel).
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_shuffle : require
layout(local_size_x = 8, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#ifndef A_ALONG_K
layout(constant_id = 3) const uint A_ALONG_K = 1;
layout(constant_id = 4) const uint B_ALONG_N = 1;
#endif
#ifdef WORDS_64
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#endif
#define T float
#define T4 vec4
#include "matmul_load_vec4.glsl"

const uint ROWS = SUBGROUP_SIZE * ROW_BLOCKS;
const uint COLUMNS = SUBGROUP_SIZE * 4 * VEC4S_PER_LANE;

#include "matmul_subgroup.glsl"
#if ROW_BLOCKS == 1
#define EACH_LOAD(F) F(0)
#define EACH_ROW(F) EACH_LANE(F, 0)
#elif ROW_BLOCKS == 2
#define EACH_LOAD(F) F(0) F(1)
#define EACH_ROW(F) EACH_LANE(F, 0) EACH_LANE(F, 1)
#elif ROW_BLOCKS == 4
#define EACH_LOAD(F) F(0) F(1) F(2) F(3)
#define EACH_ROW(F) EACH_LANE(F, 0) EACH_LANE(F, 1) EACH_LANE(F, 2) EACH_LANE(F, 3)
#else
#define EACH_LOAD(F) F(0) F(1) F(2) F(3) F(4) F(5) F(6) F(7)
#define EACH_ROW(F) \
    EACH_LANE(F, 0) EACH_LANE(F, 1) EACH_LANE(F, 2) EACH_LANE(F, 3) \
    EACH_LANE(F, 4) EACH_LANE(F, 5) EACH_LANE(F, 6) EACH_LANE(F, 7)
#endif
#if VEC4S_PER_LANE == 1
#define EACH_VEC4(F, i, lane) F(0, i, lane)
#elif VEC4S_PER_LANE == 2
#define EACH_VEC4(F, i, lane) F(0, i, lane) F(1, i, lane)
#else
#define EACH_VEC4(F, i, lane) F(0, i, lane) F(1, i, lane) F(2, i, lane) F(3, i, lane)
#endif

// Written out, as CPU drivers keep indexed arrays in memory and not in registers.
#define START_SUM(w, i, lane) T4 sum##i##_##lane##_##w = T4(0);
#define START_ROW(i, lane, first, c) EACH_VEC4(START_SUM, i, lane)
#define START_LOAD(i) uint a_at##i = place_a(at.x, row, i * SUBGROUP_SIZE + gl_SubgroupInvocationID);
#define START_VEC4(w, i, lane) uvec4 b_at##w = place_b(at.y, column + w * SUBGROUP_SIZE * 4u);
#define LOAD_A(i) \
    const T4 a##i = as_vec4(a[a_at##i]); \
    a_at##i += advance_a;
#define LOAD_B(w, i, lane) \
    const mat4 b##w = load_b(b_at##w); \
    b_at##w += advance_b;
// Four steps in one expression, so that SwiftShader keeps the sum in a register between them.
#define ADD_SUM(w, i, lane) sum##i##_##lane##_##w += b##w * left;
#define ADD_ROW(i, lane, first, c) { \
    const T4 left = A_ALONG_K != 0u ? FROM(a##i, lane) : \
        T4(FROM(a##i.c, first), FROM(a##i.c, first + 1), FROM(a##i.c, first + 2), FROM(a##i.c, first + 3)); \
    EACH_VEC4(ADD_SUM, i, lane) }
#define START_SHIFT(w, i, lane) const T4 shift##w = bias_of_columns(column + w * SUBGROUP_SIZE * 4u);
#define KEEP_SUM(w, i, lane) done[(i * SUBGROUP_SIZE + lane) * VEC4S_PER_LANE + w] = sum##i##_##lane##_##w + shift##w;
#define KEEP_ROW(i, lane, first, c) EACH_VEC4(KEEP_SUM, i, lane)

// Where a lane reads first, of ROWS rows and four steps along k: a row, or four rows at one step.
uint place_a(uint first, uint row, uint number) {
    if (A_ALONG_K != 0u) return (first + min(row + number, m - 1u) * a_row) / 4u;
    return (first + min(row + number / 4u * 4u, (m - 1u) / 4u * 4u) + number % 4u * a_column) / 4u;
}

void compute_tile(uvec4 at, uint row, uint column) {
    EACH_ROW(START_ROW)
    EACH_LOAD(START_LOAD)
    EACH_VEC4(START_VEC4, 0, 0)
    const uint advance_a = A_ALONG_K != 0u ? 1u : a_column;
    const uint advance_b = B_ALONG_N != 0u ? b_row : 1u;
    for (uint step = 0u; step < at.w / 4u; ++step) {
        EACH_LOAD(LOAD_A)
        EACH_VEC4(LOAD_B, 0, 0)
        EACH_ROW(ADD_ROW)
    }
    EACH_VEC4(START_SHIFT, 0, 0)
    T4 done[ROWS * VEC4S_PER_LANE];
    EACH_ROW(KEEP_ROW)
    const uint stores = min(ROWS, m - row) * VEC4S_PER_LANE;
    STORE_TILE(at.z, row, column, done, stores, VEC4S_PER_LANE, SUBGROUP_SIZE * 4u)
}

// Groups that follow each other share columns of b, which then stay in a cache, and a is read along its lines.
// No loop over tiles, in which CPU drivers would guard every variable by a mask, and take seconds to compile that.
void main() {
    const uint column = gl_WorkGroupID.y * COLUMNS + gl_SubgroupInvocationID * 4u;
    compute_tile(matrices(gl_WorkGroupID.z), gl_WorkGroupID.x * ROWS, column);
}
