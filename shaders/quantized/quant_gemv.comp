#version 450
// result[m, n] = sum over k of a[m, k] * b[n, k] (+ bias) for few rows m, of quantized weights b (quant_block.glsl).
// One workgroup computes ROWS rows of some columns, each invocation ROWS x 4 of them over a slice of the runs of k; slices then meet
// in shared memory. Lanes that follow each other read runs that follow each other. For GPUs.
// Source: none.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 32, local_size_y = 4, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint ROWS = 1;
#define T float
#define T4 vec4
#define LOAD vec4
#include "load_words.glsl"
#include "quant_formats.glsl"
#include "matmul.glsl"
VIEWS(1, b)
#include "quant_block.glsl"

#define LEFT(i, q) a[a_at[i] + number * 8u + (q)]
#include "quant_gemv.glsl"

// from: where the first row of a starts.
void compute_tile(uint tile, uint from, uint column, uint own, uint slice) {
    const uint row = tile * ROWS;
    const uvec2 matrix = matrix_of_tile(tile);
    vec4 sums[ROWS];
    uint a_at[ROWS];
    for (uint i = 0u; i < ROWS; ++i) {
        sums[i] = vec4(0.0);
        a_at[i] = (a_offset + from + min(i, m - 1u - row) * a_row) / 4u;
    }
    for (uint number = slice; number < matrix.y / 32u; number += SLICES) {
        ADD_RUN(matrix.x, column, n - 1u)
    }
    for (uint i = 0u; i < ROWS; ++i) {
        barrier(); // the slices of the row before have been read
        slices[slice * VEC4S_PER_GROUP + own] = sums[i];
        for (uint apart = SLICES / 2u; apart > 0u; apart /= 2u) {
            barrier();
            if (slice < apart) slices[slice * VEC4S_PER_GROUP + own] += slices[(slice + apart) * VEC4S_PER_GROUP + own];
        }
        if (slice == 0u) store4(result_offset, row + i, column, slices[own]);
    }
}

void main() {
    const uvec2 lane = gl_LocalInvocationID.yx;
    const uint tiles = (m + ROWS - 1u) / ROWS;
    for (uint tile = gl_WorkGroupID.y; tile < tiles; tile += gl_NumWorkGroups.y) {
        const uint across = tile / batches;
        const uint from = across * a_batch[0] + (tile - across * batches) * a_batch[1];
        for (uint first = gl_WorkGroupID.x * VEC4S_PER_GROUP; first * 4u < n; first += gl_NumWorkGroups.x * VEC4S_PER_GROUP) {
            compute_tile(tile, from, (first + lane.x) * 4u, lane.x, lane.y);
        }
    }
}
