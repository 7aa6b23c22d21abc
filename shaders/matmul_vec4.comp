#version 450
// result[m, n] = sum over k of a[m, k] * b[k, n] (+ bias[n]), for every matrix of a batch.
// As matmul_register, for matrices that can be read four words at once: a along k, b along n or along k.
// One invocation computes 8 x 8 results in registers; all of a SIMD group read the same words of a. For CPU drivers.
// Source: Goto and van de Geijn, Anatomy of high-performance matrix multiplication, 2008 (the register kernel).
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 8, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint B_ALONG_N = 1;
#define T float
#define T4 vec4
#include "matmul_four.glsl"
#include "matmul_block.glsl"

#define START_ROW(i, number) \
    const uint a##i = (at.x + min(row + number, m - 1u) * a_row) / 4u;
#define STEP_ROW(i, number) \
    const vec4 value##i = four(a[a##i + step]); \
    left##i += b_left * value##i; \
    right##i += b_right * value##i;

void compute_block(uvec3 at, uint row, uint column) {
    FOR_EACH_ROW(START_SUMS)
    FOR_EACH_ROW(START_ROW)
    uvec4 at_left = place_b(at.y, column);
    uvec4 at_right = place_b(at.y, column + 4u);
    const uint advance = B_ALONG_N != 0u ? b_row : 1u;
    for (uint step = 0u; step < k / 4u; ++step) {
        const mat4 b_left = load_b(at_left);
        const mat4 b_right = load_b(at_right);
        FOR_EACH_ROW(STEP_ROW)
        at_left += advance;
        at_right += advance;
    }
    vec4 done[2u * BLOCK];
    FOR_EACH_ROW(KEEP_ROW)
    store_block(at.z, row, column, done);
}

void main() {
    const uint width = gl_WorkGroupSize.x * BLOCK;
    for (uint batch = gl_WorkGroupID.z; batch < batches; batch += gl_NumWorkGroups.z) {
        const uvec3 at = matrices(batch);
        for (uint row = gl_WorkGroupID.y * BLOCK; row < m; row += gl_NumWorkGroups.y * BLOCK) {
            for (uint first = gl_WorkGroupID.x * width; first < n; first += gl_NumWorkGroups.x * width) {
                compute_block(at, row, first + gl_LocalInvocationID.x * BLOCK);
            }
        }
    }
}
