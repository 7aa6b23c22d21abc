#version 450
// result[m, n] = sum over k of a[m, k] * b[k, n] (+ bias), for every matrix of a batch: products of float16, summed in float32.
// One workgroup of SUBGROUPS_DOWN x SUBGROUPS_ACROSS subgroups computes a tile, each subgroup DOWN x ACROSS cooperative matrices of it.
// Steps of TILE_K go through shared memory as float16, along k, or with UNTRANSPOSED as factors of float16 lie. a and b lie in vec4s, or
// were packed so; with ALIGNED what is float16 lies in eights. For devices with cooperative matrices.
// Source: NVIDIA, CUTLASS: efficient GEMM in CUDA, 2017 (tiles of groups, of subgroups and of matrix instructions).
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 10) const uint A_ALONG_K = 1;
layout(constant_id = 11) const uint B_ALONG_N = 1;
#define T float
#define T4 vec4
#ifdef FP16
layout(constant_id = 12) const uint UNTRANSPOSED = 0;
#define A_UNTRANSPOSED (UNTRANSPOSED * (1u - A_ALONG_K))
#define B_UNTRANSPOSED (UNTRANSPOSED * B_ALONG_N)
#define LOADS_MUCH (A_UNTRANSPOSED != 0u) // which is read in halves
#else
#define A_UNTRANSPOSED 0u
#define B_UNTRANSPOSED 0u
#define LOADS_MUCH true
#endif
#ifdef ALIGNED
#define FP16_LOAD uvec4
#define FP16_PER_LOAD 8u
#else
#define FP16_LOAD uvec2
#define FP16_PER_LOAD 4u
#endif
#ifdef FP16
#define LOAD FP16_LOAD
#define PER FP16_PER_LOAD
#else
#define LOAD vec4
#define PER 4u
#endif
#include "matmul.glsl"
#include "coopmat.glsl"
#include "fp16_operands.glsl"

DEFINE_FACTOR(rows, LOAD, PER, a, a_tile, TILE_M, A_ALONG_K, A_UNTRANSPOSED, m, a_row, a_column)
DEFINE_FACTOR(columns, LOAD, PER, b, b_tile, TILE_N, (1u - B_ALONG_N), B_UNTRANSPOSED, n, b_column, b_row)

void put() {
    barrier(); // the tiles of the step before have been read
    rows_put();
    columns_put();
    barrier();
}

void fetch(uint step) {
    rows_fetch(step);
    columns_fetch(step);
}

void compute_tile(uvec4 at, uint row, uint column) {
    clear_sums();
    rows_start(at.x, row);
    columns_start(at.y, column);
    // The steps over an edge come first, so that all other steps are whole. Each tile is loaded while the one before is multiplied.
    uint step = k % TILE_K;
    if (step > 0u) {
        rows_fetch_edge(step);
        columns_fetch_edge(step);
    } else {
        fetch(0u);
        step = TILE_K;
    }
    for (; step < k; step += TILE_K) {
        put();
        fetch(step);
        multiply();
    }
    put();
    multiply();
    store_sums(at.z, row, column);
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
