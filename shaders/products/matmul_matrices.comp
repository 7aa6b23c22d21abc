#version 450
// result[m, n] = sum over k of a[m, k] * b[k, n] (+ bias), for every matrix of a batch: products of float16, summed in float32.
// One group of SUBGROUPS_DOWN x SUBGROUPS_ACROSS subgroups computes a tile, each subgroup DOWN x ACROSS cooperative matrices of it.
// Steps of TILE_K go through shared memory as float16, along k in any case: both factors are read from there in whole words.
// a and b lie in fours, or were packed so. For devices with matrix units.
// Source: NVIDIA, CUTLASS: efficient GEMM in CUDA, 2017 (tiles of groups, of subgroups and of matrix instructions).
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint A_ALONG_K = 1;
layout(constant_id = 4) const uint B_ALONG_N = 1;
layout(constant_id = 5) const uint MATRIX_M = 16;
layout(constant_id = 6) const uint MATRIX_N = 16;
layout(constant_id = 7) const uint MATRIX_K = 16;
layout(constant_id = 8) const uint DOWN = 2;
layout(constant_id = 9) const uint ACROSS = 2;
layout(constant_id = 10) const uint SUBGROUPS_DOWN = 2;
layout(constant_id = 11) const uint SUBGROUPS_ACROSS = 2;
#define T float
#define T4 vec4
#ifdef HALF
#define LOAD uvec2
uvec2 halves(uvec2 words) { return words; }
#else
#define LOAD vec4
uvec2 halves(vec4 values) { return uvec2(packFloat2x16(f16vec2(values.xy)), packFloat2x16(f16vec2(values.zw))); }
#endif
#include "matmul.glsl"

const uint TILE_K = 32u;
const uint OWN_M = DOWN * MATRIX_M;
const uint OWN_N = ACROSS * MATRIX_N;
const uint TILE_M = SUBGROUPS_DOWN * OWN_M;
const uint TILE_N = SUBGROUPS_ACROSS * OWN_N;
const uint SUBGROUPS = SUBGROUPS_DOWN * SUBGROUPS_ACROSS;
const uint LANES = gl_WorkGroupSize.x / SUBGROUPS;
const uint FOURS_K = TILE_K / 4u;
const uint LINE = FOURS_K + 1u; // one more four, so that lines start in different banks
shared uvec2 a_tile[TILE_M * LINE];
shared uvec2 b_tile[TILE_N * LINE];
shared float done[SUBGROUPS * MATRIX_M * MATRIX_N];

// Four values of each of two words' halves, one step along k after the other.
uvec2 lower(uint s, uint t, uint u, uint v) { return uvec2(s & 0xffffu | t << 16, u & 0xffffu | v << 16); }
uvec2 upper(uint s, uint t, uint u, uint v) { return uvec2(s >> 16 | t & 0xffff0000u, u >> 16 | v & 0xffff0000u); }

// Brings some lines (rows of a, columns of b) of TILE_K steps to shared memory; what is over an edge is 0.
// Along k it reads a four of one line, else four lines at each of four steps.
#define DEFINE_LOAD(load, from, tile, tile_lines, along_k, lines, of_line, of_step) \
    void load(uint first, uint line, uint step) { \
        if (along_k) { \
            for (uint i = gl_LocalInvocationID.x; i < tile_lines * FOURS_K; i += gl_WorkGroupSize.x) { \
                const uint own = i / FOURS_K, four = i % FOURS_K; \
                uvec2 read = uvec2(0u); \
                if (line + own < lines && step + four * 4u < k) { \
                    read = halves(from[(first + (line + own) * of_line + step) / 4u + four]); \
                } \
                tile[own * LINE + four] = read; \
            } \
        } else { \
            for (uint i = gl_LocalInvocationID.x; i < tile_lines / 4u * FOURS_K; i += gl_WorkGroupSize.x) { \
                const uint own = i % (tile_lines / 4u) * 4u, four = i / (tile_lines / 4u); \
                uvec2 read[4] = {uvec2(0u), uvec2(0u), uvec2(0u), uvec2(0u)}; \
                if (line + own < lines && step + four * 4u < k) { \
                    const uint at = (first + line + own + (step + four * 4u) * of_step) / 4u; \
                    [[unroll]] for (uint j = 0u; j < 4u; ++j) read[j] = halves(from[at + j * (of_step / 4u)]); \
                } \
                const uint to = own * LINE + four; \
                tile[to] = lower(read[0].x, read[1].x, read[2].x, read[3].x); \
                tile[to + LINE] = upper(read[0].x, read[1].x, read[2].x, read[3].x); \
                tile[to + 2u * LINE] = lower(read[0].y, read[1].y, read[2].y, read[3].y); \
                tile[to + 3u * LINE] = upper(read[0].y, read[1].y, read[2].y, read[3].y); \
            } \
        } \
    }
DEFINE_LOAD(load_a, a, a_tile, TILE_M, A_ALONG_K != 0u, m, a_row, a_column)
DEFINE_LOAD(load_b, b, b_tile, TILE_N, B_ALONG_N == 0u, n, b_column, b_row)

void compute_tile(uvec4 at, uint row, uint column) {
    coopmat<float, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator> sums[DOWN * ACROSS];
    [[unroll]] for (uint i = 0u; i < DOWN * ACROSS; ++i) {
        sums[i] = coopmat<float, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>(0.0);
    }
    const uint own_row = gl_SubgroupID / SUBGROUPS_ACROSS * OWN_M;
    const uint own_column = gl_SubgroupID % SUBGROUPS_ACROSS * OWN_N;
    for (uint step = 0u; step < at.w; step += TILE_K) {
        barrier(); // the tiles of the step before have been read
        load_a(at.x, row, step);
        load_b(at.y, column, step);
        barrier();
        [[unroll]] for (uint s = 0u; s < TILE_K; s += MATRIX_K) {
            coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_K, gl_MatrixUseA> left[DOWN];
            [[unroll]] for (uint i = 0u; i < DOWN; ++i) {
                const uint from = (own_row + i * MATRIX_M) * LINE + s / 4u;
                coopMatLoad(left[i], a_tile, from, LINE, gl_CooperativeMatrixLayoutRowMajor);
            }
            [[unroll]] for (uint j = 0u; j < ACROSS; ++j) {
                coopmat<float16_t, gl_ScopeSubgroup, MATRIX_K, MATRIX_N, gl_MatrixUseB> right;
                const uint from = (own_column + j * MATRIX_N) * LINE + s / 4u;
                coopMatLoad(right, b_tile, from, LINE, gl_CooperativeMatrixLayoutColumnMajor);
                [[unroll]] for (uint i = 0u; i < DOWN; ++i) {
                    sums[i * ACROSS + j] = coopMatMulAdd(left[i], right, sums[i * ACROSS + j]);
                }
            }
        }
    }
    // One matrix of each subgroup after the other, in a loop that is not written out, as the epilogue is long.
    const uint to = gl_SubgroupID * MATRIX_M * MATRIX_N;
    [[dont_unroll]] for (uint part = 0u; part < DOWN * ACROSS; ++part) {
        barrier(); // the one before has been read
        [[unroll]] for (uint i = 0u; i < DOWN * ACROSS; ++i) {
            if (i == part) coopMatStore(sums[i], done, to, MATRIX_N, gl_CooperativeMatrixLayoutRowMajor);
        }
        barrier();
        const uint first_row = row + own_row + part / ACROSS * MATRIX_M;
        const uint first_column = column + own_column + part % ACROSS * MATRIX_N;
        for (uint i = gl_SubgroupInvocationID * 4u; i < MATRIX_M * MATRIX_N; i += LANES * 4u) {
            const T4 values = T4(done[to + i], done[to + i + 1u], done[to + i + 2u], done[to + i + 3u]);
            store4(at.z, first_row + i / MATRIX_N, first_column + i % MATRIX_N, values);
        }
    }
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
