#version 450
// result[m, n] = sum over k of a[m, k] * b[k, n] (+ bias[n]), for every matrix of a batch.
// One group computes a tile of BLOCK * LOCAL_Y rows and BLOCK * LOCAL_X columns, each invocation BLOCK x BLOCK of it.
// Steps of TILE_K go through shared memory, read along whichever axis of a and b is contiguous. For GPUs.
// Source: Volkov and Demmel, Benchmarking GPUs to tune dense linear algebra, 2008.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 16, local_size_y = 8, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint BLOCK = 4;
layout(constant_id = 4) const uint A_ALONG_K = 1;
layout(constant_id = 5) const uint B_ALONG_N = 1;
#define LOAD T
#include "matmul.glsl"

const uint TILE_K = 16u;
const uint TILE_M = BLOCK * gl_WorkGroupSize.y;
const uint TILE_N = BLOCK * gl_WorkGroupSize.x;
const uint SIZE = gl_WorkGroupSize.x * gl_WorkGroupSize.y;
// one word more per row, so that writes along k meet different banks
shared T a_tile[TILE_K * (TILE_M + 1u)];
shared T b_tile[TILE_K * (TILE_N + 1u)];

void load_tiles(uvec3 at, uint row, uint column, uint step) {
    for (uint i = gl_LocalInvocationIndex; i < TILE_K * TILE_M; i += SIZE) {
        const uvec2 in_tile = A_ALONG_K != 0u ? uvec2(i / TILE_K, i % TILE_K) : uvec2(i % TILE_M, i / TILE_M);
        const uvec2 here = uvec2(row, step) + in_tile;
        const bool inside = here.x < m && here.y < k;
        a_tile[in_tile.y * (TILE_M + 1u) + in_tile.x] = inside ? a[at.x + here.x * a_row + here.y * a_column] : T(0);
    }
    for (uint i = gl_LocalInvocationIndex; i < TILE_K * TILE_N; i += SIZE) {
        const uvec2 in_tile = B_ALONG_N != 0u ? uvec2(i / TILE_N, i % TILE_N) : uvec2(i % TILE_K, i / TILE_K);
        const uvec2 here = uvec2(step, column) + in_tile;
        const bool inside = here.x < k && here.y < n;
        b_tile[in_tile.x * (TILE_N + 1u) + in_tile.y] = inside ? b[at.y + here.x * b_row + here.y * b_column] : T(0);
    }
}

void compute_tile(uvec3 at, uint row, uint column) {
    T sums[BLOCK * BLOCK];
    for (uint i = 0u; i < BLOCK * BLOCK; ++i) sums[i] = T(0);
    const uvec2 lane = gl_LocalInvocationID.xy;
    for (uint step = 0u; step < k; step += TILE_K) {
        barrier(); // the tiles of the step before have been read
        load_tiles(at, row, column, step);
        barrier();
        for (uint s = 0u; s < TILE_K; ++s) {
            T left[BLOCK];
            for (uint i = 0u; i < BLOCK; ++i) left[i] = a_tile[s * (TILE_M + 1u) + lane.y + i * gl_WorkGroupSize.y];
            for (uint j = 0u; j < BLOCK; ++j) {
                const T right = b_tile[s * (TILE_N + 1u) + lane.x + j * gl_WorkGroupSize.x];
                for (uint i = 0u; i < BLOCK; ++i) sums[i * BLOCK + j] += left[i] * right;
            }
        }
    }
    for (uint i = 0u; i < BLOCK; ++i) {
        for (uint j = 0u; j < BLOCK; ++j) {
            const uvec2 in_tile = lane.yx + uvec2(i, j) * gl_WorkGroupSize.yx;
            store(at.z, row + in_tile.x, column + in_tile.y, sums[i * BLOCK + j]);
        }
    }
}

void main() {
    for (uint batch = gl_WorkGroupID.z; batch < batches; batch += gl_NumWorkGroups.z) {
        const uvec3 at = matrices(batch);
        for (uint row = gl_WorkGroupID.y * TILE_M; row < m; row += gl_NumWorkGroups.y * TILE_M) {
            for (uint column = gl_WorkGroupID.x * TILE_N; column < n; column += gl_NumWorkGroups.x * TILE_N) {
                compute_tile(at, row, column);
            }
        }
    }
}
