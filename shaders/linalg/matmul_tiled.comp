#version 450
// result[m, n] = sum over k of a[m, k] * b[k, n] (+ bias), for every matrix of a batch.
// One workgroup computes a tile of 4 * LOCAL_Y rows and 4 * LOCAL_X columns, each invocation 4 x 4 of it.
// Steps of TILE_K go through shared memory, read along whichever axis of a and b is contiguous. For GPUs, and operands of any size.
// Source: Volkov and Demmel, Benchmarking GPUs to tune dense linear algebra, 2008.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
layout(local_size_x = 16, local_size_y = 8, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint A_ALONG_K = 1;
layout(constant_id = 4) const uint B_ALONG_N = 1;
#ifdef FP16
#define LOAD uint
#define READ(x, at) unpackHalf2x16(x[(at) / 2u])[(at) % 2u]
#else
#define LOAD T
#define READ(x, at) x[at]
#endif
#ifndef ROUNDS
#define ROUNDS
#endif
#include "matmul.glsl"

const uint TILE_K = 16u;
const uint TILE_M = 4u * gl_WorkGroupSize.y;
const uint TILE_N = 4u * gl_WorkGroupSize.x;
const uint SIZE = gl_WorkGroupSize.x * gl_WorkGroupSize.y;
// four rows or columns in an element, and one element more per step along k, so that writes along k meet different banks
const uint A_LINE = TILE_M / 4u + 1u;
const uint B_LINE = TILE_N / 4u + 1u;
shared T4 a_tile[TILE_K * A_LINE];
shared T4 b_tile[TILE_K * B_LINE];

// Each reads four neighbours in memory. inside: none of the tile is over an edge.
void load_a(uint first, uint row, uint step, bool inside) {
    for (uint i = gl_LocalInvocationIndex * 4u; i < TILE_K * TILE_M; i += SIZE * 4u) {
        const uvec2 in_tile = A_ALONG_K != 0u ? uvec2(i / TILE_K, i % TILE_K) : uvec2(i % TILE_M, i / TILE_M);
        const uvec2 here = uvec2(row, step) + in_tile;
        const uint at = first + here.x * a_row + here.y * a_column;
        T4 read = T4(0);
        if (inside) {
            read = T4(READ(a, at), READ(a, at + 1u), READ(a, at + 2u), READ(a, at + 3u));
        } else {
            for (uint j = 0u; j < 4u; ++j) {
                const uvec2 next = here + (A_ALONG_K != 0u ? uvec2(0u, j) : uvec2(j, 0u));
                if (next.x < m && next.y < k) read[j] = READ(a, at + j);
            }
        }
        if (A_ALONG_K == 0u) {
            a_tile[in_tile.y * A_LINE + in_tile.x / 4u] = read;
        } else {
            for (uint j = 0u; j < 4u; ++j) a_tile[(in_tile.y + j) * A_LINE + in_tile.x / 4u][in_tile.x % 4u] = read[j];
        }
    }
}

void load_b(uint first, uint column, uint step, bool inside) {
    for (uint i = gl_LocalInvocationIndex * 4u; i < TILE_K * TILE_N; i += SIZE * 4u) {
        const uvec2 in_tile = B_ALONG_N != 0u ? uvec2(i / TILE_N, i % TILE_N) : uvec2(i % TILE_K, i / TILE_K);
        const uvec2 here = uvec2(step, column) + in_tile;
        const uint at = first + here.x * b_row + here.y * b_column;
        T4 read = T4(0);
        if (inside) {
            read = T4(READ(b, at), READ(b, at + 1u), READ(b, at + 2u), READ(b, at + 3u));
        } else {
            for (uint j = 0u; j < 4u; ++j) {
                const uvec2 next = here + (B_ALONG_N != 0u ? uvec2(0u, j) : uvec2(j, 0u));
                if (next.x < k && next.y < n) read[j] = READ(b, at + j);
            }
        }
        if (B_ALONG_N != 0u) {
            b_tile[in_tile.x * B_LINE + in_tile.y / 4u] = read;
        } else {
            for (uint j = 0u; j < 4u; ++j) b_tile[(in_tile.x + j) * B_LINE + in_tile.y / 4u][in_tile.y % 4u] = read[j];
        }
    }
}

void compute_tile(uvec4 at, uint row, uint column) {
    T4 sums[4] = T4[4](T4(0), T4(0), T4(0), T4(0));
    T4 whole[4] = sums; // sums of sums, as these lose less to rounding
    const uvec2 lane = gl_LocalInvocationID.xy;
    const bool inside = row + TILE_M <= m && column + TILE_N <= n;
    for (uint step = 0u; step < at.w; step += TILE_K) {
        barrier(); // the tiles of the step before have been read
        load_a(at.x, row, step, inside && step + TILE_K <= k);
        load_b(at.y, column, step, inside && step + TILE_K <= k);
        barrier();
        ROUNDS for (uint s = 0u; s < TILE_K; ++s) {
            const T4 left = a_tile[s * A_LINE + lane.y];
            const T4 right = b_tile[s * B_LINE + lane.x];
            for (uint i = 0u; i < 4u; ++i) sums[i] += left[i] * right;
        }
        for (uint i = 0u; i < 4u; ++i) {
            whole[i] += sums[i];
            sums[i] = T4(0);
        }
    }
    for (uint i = 0u; i < 4u; ++i) store4(at.z, row + lane.y * 4u + i, column + lane.x * 4u, whole[i]);
}

void main() {
    for (uint batch = gl_WorkGroupID.z; batch < batches; batch += gl_NumWorkGroups.z) {
        const uvec4 at = matrices(batch);
        for (uint row = gl_WorkGroupID.y * TILE_M; row < m; row += gl_NumWorkGroups.y * TILE_M) {
            for (uint column = gl_WorkGroupID.x * TILE_N; column < n; column += gl_NumWorkGroups.x * TILE_N) {
                compute_tile(at, row, column);
            }
        }
    }
}
