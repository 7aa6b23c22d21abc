#version 450
// result[m, n] = sum over k of a[m, k] * b[k, n] (+ bias), for every matrix of a batch, read four elements at once.
// One workgroup computes a tile of TILE_M x TILE_N, each invocation DOWN x ACROSS blocks of 4 x 4 of it, which lie apart.
// Steps of TILE_K go through shared memory, each loaded while the one before is multiplied. a and b lie in vec4s, or were packed so. For GPUs.
// FP16_B: b is read as float16, with BF16_B as bfloat16. MIXED: tiles hold float16, which halves what is read of them; sums stay float.
// UNALIGNED: lines are no vec4s, and are read element by element. FP16_ACC: sums are float16 too, two in a register.
// Source: Volkov and Demmel, Benchmarking GPUs to tune dense linear algebra, 2008; Nath, Tomov and Dongarra, An improved MAGMA GEMM for Fermi GPUs, 2010.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#ifdef MIXED
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#define TILE4 f16vec4
#else
#define TILE4 vec4
#endif
#ifdef FP16_ACC
#define SUM4 f16vec4
#else
#define SUM4 vec4
#endif
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 7) const uint A_ALONG_K = 1;
layout(constant_id = 8) const uint B_ALONG_N = 1;
#define T float
#define T4 vec4
#ifdef FP16_B
#define LOAD_OF_B uvec2
#endif
#include "matmul_load_vec4.glsl"
#include "vec4_tile.glsl"

#ifdef UNALIGNED
#undef LOAD
#define LOAD vec4
#undef LOAD_OF_B
#define LOAD_OF_B vec4
#endif
DEFINE_FACTOR(rows, LOAD, a, a_tile, TILE_M, (A_ALONG_K != 0u), m, a_row, a_column)
DEFINE_FACTOR(columns, LOAD_OF_B, b, b_tile, TILE_N, (B_ALONG_N == 0u), n, b_column, b_row)

#include "vec4_multiply.glsl"

void fetch(uint step) {
    rows_fetch(step);
    columns_fetch(step);
}

void put(uint which) {
    rows_put(which);
    columns_put(which);
    barrier();
}

void add_products(uvec4 at, uint row, uint column) {
    rows_start(at.x, row);
    columns_start(at.y, column);
    // The steps over an edge come first, so that all other steps are whole.
    uint step = at.w % TILE_K;
    if (step > 0u) {
        rows_fetch_edge(step);
        columns_fetch_edge(step);
    } else {
        fetch(0u);
        step = TILE_K;
    }
    barrier(); // the tiles of the result before have been read
    put(0u);
    uint which = 0u;
    for (; step < at.w; step += TILE_K) {
        fetch(step);
        multiply(which);
        which = 1u - which;
        put(which);
    }
    multiply(which);
}

void compute_tile(uvec4 at, uint row, uint column) {
    clear_sums();
    if (at.w > 0u) add_products(at, row, column);
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
