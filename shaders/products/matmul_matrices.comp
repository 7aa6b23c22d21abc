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
const uint SIZE = gl_WorkGroupSize.x;
const uint EIGHTS = TILE_K / 8u;
const uint LINE = EIGHTS + 1u; // eights of float16 along k, one more so that lines start in different banks
shared uvec4 a_tile[TILE_M * LINE];
shared uvec4 b_tile[TILE_N * LINE];
shared float done[SUBGROUPS * MATRIX_M * MATRIX_N];

// Of two columns of halves, four steps along k each, the lower or the upper one.
uvec2 lower(uint s, uint t, uint u, uint v) { return uvec2(s & 0xffffu | t << 16, u & 0xffffu | v << 16); }
uvec2 upper(uint s, uint t, uint u, uint v) { return uvec2(s >> 16 | t & 0xffff0000u, u >> 16 | v & 0xffff0000u); }

// How lines (rows of a, columns of b) come to shared memory: `start` at a tile, then for each TILE_K steps `fetch`, which begins to
// load them, and `put`. `fetch_edge` is for the first steps, where these are fewer; the others are 0. Lines over the edge repeat the
// last one, and are not stored. In turn an invocation reads eights of lines, or along a line four lines at eight steps.
#define DEFINE_FACTOR(name, from, tile, tile_lines, along_k, lines, of_line, of_step) \
    const uint name##_IDS = along_k ? tile_lines * EIGHTS : tile_lines / 4u * EIGHTS; \
    const uint name##_TURNS = name##_IDS > SIZE ? name##_IDS / SIZE : 1u; \
    const uint name##_READS = along_k ? 2u : 8u; \
    LOAD name##_read[name##_TURNS * name##_READS]; \
    uint name##_at[name##_TURNS]; \
    uvec2 name##_own(uint turn) { /* the first line in the tile, and the eight */ \
        const uint id = (gl_LocalInvocationID.x + turn * SIZE) % name##_IDS; \
        return along_k ? uvec2(id / EIGHTS, id % EIGHTS) : uvec2(id % (tile_lines / 4u) * 4u, id / (tile_lines / 4u)); \
    } \
    void name##_start(uint first, uint line) { \
        [[unroll]] for (uint i = 0u; i < name##_TURNS; ++i) { \
            const uvec2 own = name##_own(i); \
            if (along_k) { \
                name##_at[i] = (first + min(line + own.x, lines - 1u) * of_line) / 4u + own.y * 2u; \
            } else { \
                name##_at[i] = (first + min(line + own.x, (lines - 1u) / 4u * 4u) + own.y * 8u * of_step) / 4u; \
            } \
        } \
    } \
    void name##_fetch(uint step) { \
        [[unroll]] for (uint i = 0u; i < name##_TURNS; ++i) { \
            [[unroll]] for (uint j = 0u; j < name##_READS; ++j) { \
                const uint on = along_k ? step / 4u + j : (step + j) * (of_step / 4u); \
                name##_read[i * name##_READS + j] = from[name##_at[i] + on]; \
            } \
        } \
    } \
    void name##_fetch_edge(uint steps) { \
        [[unroll]] for (uint i = 0u; i < name##_TURNS; ++i) { \
            [[unroll]] for (uint j = 0u; j < name##_READS; ++j) { \
                const bool inside = name##_own(i).y * 8u + j * (along_k ? 4u : 1u) < steps; \
                const uint on = along_k ? j : j * (of_step / 4u); \
                const LOAD read = from[inside ? name##_at[i] + on : 0u]; \
                name##_read[i * name##_READS + j] = inside ? read : LOAD(0); \
            } \
        } \
    } \
    void name##_put() { \
        if (gl_LocalInvocationID.x >= name##_IDS) return; \
        [[unroll]] for (uint i = 0u; i < name##_TURNS; ++i) { \
            const uvec2 own = name##_own(i); \
            const uint to = own.x * LINE + own.y; \
            if (along_k) { \
                tile[to] = uvec4(halves(name##_read[i * 2u]), halves(name##_read[i * 2u + 1u])); \
            } else { \
                uvec2 r[8]; \
                [[unroll]] for (uint j = 0u; j < 8u; ++j) r[j] = halves(name##_read[i * name##_READS + j % name##_READS]); \
                [[unroll]] for (uint c = 0u; c < 2u; ++c) { \
                    tile[to + c * 2u * LINE] = \
                        uvec4(lower(r[0][c], r[1][c], r[2][c], r[3][c]), lower(r[4][c], r[5][c], r[6][c], r[7][c])); \
                    tile[to + (c * 2u + 1u) * LINE] = \
                        uvec4(upper(r[0][c], r[1][c], r[2][c], r[3][c]), upper(r[4][c], r[5][c], r[6][c], r[7][c])); \
                } \
            } \
        } \
    }
DEFINE_FACTOR(rows, a, a_tile, TILE_M, (A_ALONG_K != 0u), m, a_row, a_column)
DEFINE_FACTOR(columns, b, b_tile, TILE_N, (B_ALONG_N == 0u), n, b_column, b_row)

#define SUM coopmat<float, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>

SUM sums[DOWN * ACROSS];

// Adds the products of what shared memory holds to the sums of a subgroup.
void multiply(uint own_row, uint own_column) {
    [[unroll]] for (uint s = 0u; s < TILE_K; s += MATRIX_K) {
        coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_K, gl_MatrixUseA> left[DOWN];
        [[unroll]] for (uint i = 0u; i < DOWN; ++i) {
            const uint from = (own_row + i * MATRIX_M) * LINE + s / 8u;
            coopMatLoad(left[i], a_tile, from, LINE, gl_CooperativeMatrixLayoutRowMajor);
        }
        [[unroll]] for (uint j = 0u; j < ACROSS; ++j) {
            coopmat<float16_t, gl_ScopeSubgroup, MATRIX_K, MATRIX_N, gl_MatrixUseB> right;
            const uint from = (own_column + j * MATRIX_N) * LINE + s / 8u;
            coopMatLoad(right, b_tile, from, LINE, gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (uint i = 0u; i < DOWN; ++i) {
                sums[i * ACROSS + j] = coopMatMulAdd(left[i], right, sums[i * ACROSS + j]);
            }
        }
    }
}

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
    [[unroll]] for (uint i = 0u; i < DOWN * ACROSS; ++i) sums[i] = SUM(0.0);
    const uint own_row = gl_SubgroupID / SUBGROUPS_ACROSS * OWN_M;
    const uint own_column = gl_SubgroupID % SUBGROUPS_ACROSS * OWN_N;
    rows_start(at.x, row);
    columns_start(at.y, column);
    // What is over an edge comes first, so that all other steps are whole. Each tile is loaded while the one before is multiplied.
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
        multiply(own_row, own_column);
    }
    put();
    multiply(own_row, own_column);
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
