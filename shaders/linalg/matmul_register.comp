#version 450
// result[m, n] = sum over k of a[m, k] * b[k, n] (+ bias[n]), for every matrix of a batch.
// One invocation computes 8 x 8 results in registers, without shared memory or barriers. For CPU drivers.
// Rows and columns over the edge repeat the last one, so that the loop over k needs no guards; they are not stored.
// Source: Goto and van de Geijn, Anatomy of high-performance matrix multiplication, 2008 (the register kernel).
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 8, local_size_y = 4, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#define LOAD T
#include "matmul.glsl"
#include "matmul_block.glsl"

#define START_ROW(i, number) \
    uint a##i = at.x + min(row + number, m - 1u) * a_row;
#define START_PART(i, number) \
    T4 left_part##i = T4(0); \
    T4 right_part##i = T4(0);
#define STEP_ROW(i, number) \
    const T value##i = a[a##i]; \
    left_part##i += value##i * b_left; \
    right_part##i += value##i * b_right; \
    a##i += a_column;
#define ADD_PART(i, number) \
    left##i += left_part##i; \
    right##i += right_part##i;

const uint PART = 32u; // steps along k, as a sum of sums loses less to rounding

void compute_block(uvec4 at, uint row, uint column) {
    FOR_EACH_ROW(START_SUMS)
    FOR_EACH_ROW(START_ROW)
    const uvec4 last = uvec4(n - 1u);
    uvec4 at_left = at.y + min(column + uvec4(0u, 1u, 2u, 3u), last) * b_column;
    uvec4 at_right = at.y + min(column + uvec4(4u, 5u, 6u, 7u), last) * b_column;
    for (uint first = 0u; first < at.w; first += PART) {
        FOR_EACH_ROW(START_PART)
        const uint end = min(first + PART, k);
        for (uint step = first; step < end; ++step) {
            const T4 b_left = T4(b[at_left.x], b[at_left.y], b[at_left.z], b[at_left.w]);
            const T4 b_right = T4(b[at_right.x], b[at_right.y], b[at_right.z], b[at_right.w]);
            FOR_EACH_ROW(STEP_ROW)
            at_left += b_row;
            at_right += b_row;
        }
        FOR_EACH_ROW(ADD_PART)
    }
    T4 done[2u * BLOCK];
    FOR_EACH_ROW(KEEP_ROW)
    store_block(at.z, row, column, done);
}

void main() {
    const uvec3 stride = gl_NumWorkGroups * gl_WorkGroupSize * uvec3(BLOCK, BLOCK, 1u);
    for (uint batch = gl_GlobalInvocationID.z; batch < batches; batch += stride.z) {
        const uvec4 at = matrices(batch);
        for (uint row = gl_GlobalInvocationID.y * BLOCK; row < m; row += stride.y) {
            for (uint column = gl_GlobalInvocationID.x * BLOCK; column < n; column += stride.x) {
                compute_block(at, row, column);
            }
        }
    }
}
