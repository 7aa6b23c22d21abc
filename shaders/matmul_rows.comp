#version 450
// result[m, n] = sum over k of a[m, k] * b[k, n] (+ bias), for every matrix of a batch, of few rows; a lies along k.
// One group is one subgroup of LANES; it computes ROWS rows and LANES * 4 columns, each lane four columns.
// The lanes load 4 * LANES steps of a row at once and shuffles hand them to all; every value of b is loaded once. For CPU drivers.
// Source: none.
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_ballot : require
#extension GL_KHR_shader_subgroup_shuffle : require
layout(local_size_x = 8, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint B_ALONG_N = 1;
#define T float
#define T4 vec4
#include "matmul_four.glsl"
#include "matmul_lanes.glsl"

#if ROWS == 1
#define EACH_ROW(F) F(0)
#else
#define EACH_ROW(F) F(0) F(1) F(2) F(3)
#endif
#define START_ROW(i) \
    T4 sum##i = T4(0); \
    const uint a_at##i = (at.x + min(row + i, m - 1u) * a_row) / 4u;
#define LOAD_ROW(i) const T4 a##i = four(a[a_at##i + min(step + gl_SubgroupInvocationID, steps - 1u)]);
#define ADD_ROW(i) sum##i += now * left##i;
#define TAKE_ROW(i) const T4 left##i = subgroupShuffle(a##i, j);
#define KEEP_ROW(i) done[i] = sum##i;
#define ADD_LANE(i, lane, first, c) { \
    const mat4 now = load_b(b_at); \
    b_at += advance; \
    EACH_ROW(ADD_LANE_ROW_##lane) }
#define ADD_LANE_ROW_0(i) sum##i += now * FROM(a##i, 0);
#define ADD_LANE_ROW_1(i) sum##i += now * FROM(a##i, 1);
#define ADD_LANE_ROW_2(i) sum##i += now * FROM(a##i, 2);
#define ADD_LANE_ROW_3(i) sum##i += now * FROM(a##i, 3);
#define ADD_LANE_ROW_4(i) sum##i += now * FROM(a##i, 4);
#define ADD_LANE_ROW_5(i) sum##i += now * FROM(a##i, 5);
#define ADD_LANE_ROW_6(i) sum##i += now * FROM(a##i, 6);
#define ADD_LANE_ROW_7(i) sum##i += now * FROM(a##i, 7);

void compute_tile(uvec3 at, uint row, uint column) {
    EACH_ROW(START_ROW)
    uvec4 b_at = place_b(at.y, column);
    const uint advance = B_ALONG_N != 0u ? b_row : 1u;
    const uint steps = k / 4u;
    uint step = 0u;
    for (; step + LANES <= steps; step += LANES) {
        EACH_ROW(LOAD_ROW)
        EACH_LANE(ADD_LANE, 0)
    }
    if (step < steps) {
        EACH_ROW(LOAD_ROW)
        for (uint j = 0u; step < steps; ++step, ++j) {
            const mat4 now = load_b(b_at);
            b_at += advance;
            EACH_ROW(TAKE_ROW)
            EACH_ROW(ADD_ROW)
        }
    }
    T4 done[ROWS];
    EACH_ROW(KEEP_ROW)
    const uint stores = min(ROWS, m - row); // a count that no compiler knows: drivers take long over many stores written out
    for (uint i = 0u; i < stores; ++i) store4(at.z, row + i, column, done[i]);
}

// No loop over tiles, in which CPU drivers would guard every variable by a mask, and take seconds to compile that.
void main() {
    const uint column = gl_WorkGroupID.x * LANES * 4u + gl_SubgroupInvocationID * 4u;
    compute_tile(matrices(gl_WorkGroupID.z), gl_WorkGroupID.y * ROWS, column);
}
