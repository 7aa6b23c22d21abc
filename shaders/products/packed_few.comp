#version 450
// result[m, n] = sum over k of a[m, k] * b[n, k] (+ bias) for few rows m, of weights b of few bits (packed.glsl).
// One group computes ROWS rows of some columns, each invocation ROWS x 4 of them over a slice of the runs of k; slices then meet
// in shared memory. Lanes that follow each other read runs that follow each other. For GPUs.
// Source: none.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 32, local_size_y = 4, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint ROWS = 1;
#define T float
#define T4 vec4
#define LOAD vec4
#define LOAD_OF_B uvec2
#include "words.glsl"
#include "matmul.glsl"
#include "packed.glsl"

const uint FOURS_OF_GROUP = gl_WorkGroupSize.y;
const uint SLICES = gl_WorkGroupSize.x;
shared vec4 slices[FOURS_OF_GROUP * SLICES];

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
        Run runs[4];
        for (uint j = 0u; j < 4u; ++j) runs[j] = run_of(matrix.x + min(column + j, n - 1u) * b_column, number);
        for (uint side = 0u; side < 2u; ++side) {
            vec4 parts[ROWS];
            float all[ROWS];
            for (uint i = 0u; i < ROWS; ++i) {
                parts[i] = vec4(0.0);
                all[i] = 0.0;
            }
            for (uint q = 4u * side; q < 4u * side + 4u; ++q) {
                vec4 codes[4];
                for (uint j = 0u; j < 4u; ++j) codes[j] = codes_of(runs[j], q);
                for (uint i = 0u; i < ROWS; ++i) {
                    const vec4 left = a[a_at[i] + number * 8u + q];
                    for (uint j = 0u; j < 4u; ++j) parts[i][j] += dot(left, codes[j]);
#ifdef SHIFTS
                    all[i] += left.x + left.y + (left.z + left.w);
#endif
                }
            }
            for (uint i = 0u; i < ROWS; ++i) {
                for (uint j = 0u; j < 4u; ++j) {
                    sums[i][j] += parts[i][j] * runs[j].scale[side] + all[i] * runs[j].shift[side];
                }
            }
        }
    }
    for (uint i = 0u; i < ROWS; ++i) {
        barrier(); // the slices of the row before have been read
        slices[slice * FOURS_OF_GROUP + own] = sums[i];
        for (uint apart = SLICES / 2u; apart > 0u; apart /= 2u) {
            barrier();
            if (slice < apart) slices[slice * FOURS_OF_GROUP + own] += slices[(slice + apart) * FOURS_OF_GROUP + own];
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
        for (uint first = gl_WorkGroupID.x * FOURS_OF_GROUP; first * 4u < n; first += gl_NumWorkGroups.x * FOURS_OF_GROUP) {
            compute_tile(tile, from, (first + lane.x) * 4u, lane.x, lane.y);
        }
    }
}
