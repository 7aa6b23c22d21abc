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

const uint SIZE = gl_WorkGroupSize.x;

// Four values of each of two words' halves, one step along k after the other.
uvec2 lower(uint s, uint t, uint u, uint v) { return uvec2(s & 0xffffu | t << 16, u & 0xffffu | v << 16); }
uvec2 upper(uint s, uint t, uint u, uint v) { return uvec2(s >> 16 | t & 0xffff0000u, u >> 16 | v & 0xffff0000u); }

// How lines (rows of a, columns of b) come to shared memory: `start` at a tile, then for each TILE_K steps `fetch` and `put`. All
// loads are under way before one is waited for, and none is in a branch: over an edge they repeat what is inside. That is 0 along
// k, and of no line that is stored. An invocation reads fours of several lines, or along a line four steps of four lines.
#define DEFINE_FACTOR(name, from, tile, tile_lines, along_k, lines, of_line, of_step) \
    const uint name##_READS = tile_lines * FOURS_K / SIZE; \
    LOAD name##_read[name##_READS]; \
    uint name##_at[name##_READS]; \
    void name##_start(uint first, uint line) { \
        [[unroll]] for (uint i = 0u; i < name##_READS; ++i) { \
            if (along_k) { \
                const uint own = (gl_LocalInvocationID.x + i * SIZE) / FOURS_K; \
                name##_at[i] = (first + min(line + own, lines - 1u) * of_line) / 4u; \
            } else { \
                const uint own = gl_LocalInvocationID.x % (tile_lines / 4u) * 4u; \
                name##_at[i] = (first + min(line + own, (lines - 1u) / 4u * 4u)) / 4u; \
            } \
        } \
    } \
    uint name##_four(uint i) { \
        return along_k ? gl_LocalInvocationID.x % FOURS_K : (gl_LocalInvocationID.x + i * SIZE) / (tile_lines / 4u); \
    } \
    void name##_fetch(uint step) { \
        [[unroll]] for (uint i = 0u; i < name##_READS; ++i) { \
            const uint here = min(step + name##_four(i / 4u) * 4u, k - 4u); \
            name##_read[i] = from[name##_at[i] + (along_k ? here / 4u : (here + i % 4u) * (of_step / 4u))]; \
        } \
    } \
    void name##_put(uint step) { \
        [[unroll]] for (uint i = 0u; i < name##_READS; i += along_k ? 1u : 4u) { \
            const uint four = name##_four(i / 4u); \
            const uvec2 keep = uvec2(step + four * 4u < k ? ~0u : 0u); \
            if (along_k) { \
                tile[(gl_LocalInvocationID.x + i * SIZE) / FOURS_K * LINE + four] = halves(name##_read[i]) & keep; \
            } else { \
                const uint to = gl_LocalInvocationID.x % (tile_lines / 4u) * 4u * LINE + four; \
                const uvec2 s = halves(name##_read[i]), t = halves(name##_read[i + 1u]); \
                const uvec2 u = halves(name##_read[i + 2u]), v = halves(name##_read[i + 3u]); \
                tile[to] = lower(s.x, t.x, u.x, v.x) & keep; \
                tile[to + LINE] = upper(s.x, t.x, u.x, v.x) & keep; \
                tile[to + 2u * LINE] = lower(s.y, t.y, u.y, v.y) & keep; \
                tile[to + 3u * LINE] = upper(s.y, t.y, u.y, v.y) & keep; \
            } \
        } \
    }
DEFINE_FACTOR(rows, a, a_tile, TILE_M, A_ALONG_K != 0u, m, a_row, a_column)
DEFINE_FACTOR(columns, b, b_tile, TILE_N, B_ALONG_N == 0u, n, b_column, b_row)

void compute_tile(uvec4 at, uint row, uint column) {
    coopmat<float, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator> sums[DOWN * ACROSS];
    [[unroll]] for (uint i = 0u; i < DOWN * ACROSS; ++i) {
        sums[i] = coopmat<float, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>(0.0);
    }
    const uint own_row = gl_SubgroupID / SUBGROUPS_ACROSS * OWN_M;
    const uint own_column = gl_SubgroupID % SUBGROUPS_ACROSS * OWN_N;
    rows_start(at.x, row);
    columns_start(at.y, column);
    for (uint step = 0u; step < k; step += TILE_K) {
        rows_fetch(step);
        columns_fetch(step);
        barrier(); // the tiles of the step before have been read
        rows_put(step);
        columns_put(step);
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
