#version 450
// result[m, n] = sum over k of a[m, k] * b[k, n] (+ bias), for every matrix of a batch, read four elements at once.
// One workgroup computes a tile of TILE_M x TILE_N, each invocation DOWN x ACROSS blocks of 4 x 4 of it, which lie apart.
// Steps of TILE_K go through shared memory, each loaded while the one before is multiplied. a and b lie in vec4s, or were packed so. For GPUs.
// FP16_B: b is read as float16, with BF16_B as bfloat16. MIXED: tiles hold float16, which halves what is read of them; sums stay float.
// FP16_ACC: sums are float16 too, two in a register.
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
layout(constant_id = 3) const uint TILE_M = 128;
layout(constant_id = 4) const uint TILE_N = 64;
layout(constant_id = 5) const uint DOWN = 2;
layout(constant_id = 6) const uint ACROSS = 2;
layout(constant_id = 7) const uint A_ALONG_K = 1;
layout(constant_id = 8) const uint B_ALONG_N = 1;
#define T float
#define T4 vec4
#ifdef FP16_B
#define LOAD_OF_B uvec2
#endif
#include "matmul_load_vec4.glsl"

const uint TILE_K = 8u;
const uint SIZE = gl_WorkGroupSize.x;
const uint BLOCKS_DOWN = TILE_M / 4u / DOWN;
const uint BLOCKS_ACROSS = TILE_N / 4u / ACROSS;
const uint WIDE = 8u; // blocks across of the invocations that follow each other, so that a subgroup reads few others
const uint SUMS = DOWN * 4u * ACROSS;
SUM4 sums[SUMS];

// How lines (rows of a, columns of b) come to shared memory, for each step along k in vec4s of lines: `start` at a tile, then for each
// TILE_K steps `fetch`, which begins to load them, and `put` into one of two tiles. `fetch_edge` is for the first steps, where these
// are fewer; the others are 0. Lines over the edge repeat the last one, and are not stored. A gap behind every four steps keeps what
// is read along k, and so written step by step, in different banks.
#define DEFINE_FACTOR(name, load, from, tile, tile_lines, along_k, lines, of_line, of_step) \
    const uint name##_IDS = tile_lines * TILE_K / 4u; \
    const uint name##_PASSES = name##_IDS > SIZE ? name##_IDS / SIZE : 1u; \
    const uint name##_GAP = along_k ? 4u : 0u; \
    const uint name##_TILE = TILE_K * tile_lines / 4u + name##_GAP; \
    shared TILE4 tile[2u * name##_TILE]; \
    load name##_read[name##_PASSES]; \
    uint name##_at[name##_PASSES]; \
    uint name##_of(uint step) { return step * (tile_lines / 4u) + step / 4u * name##_GAP; } \
    uvec2 name##_own(uint pass) { /* the first line in the tile, and the step */ \
        const uint id = (gl_LocalInvocationID.x + pass * SIZE) % name##_IDS; \
        return along_k ? uvec2(id / (TILE_K / 4u), id % (TILE_K / 4u) * 4u) \
                       : uvec2(id % (tile_lines / 4u) * 4u, id / (tile_lines / 4u)); \
    } \
    void name##_start(uint first, uint line) { \
        [[unroll]] for (uint i = 0u; i < name##_PASSES; ++i) { \
            const uvec2 own = name##_own(i); \
            name##_at[i] = along_k ? (first + min(line + own.x, lines - 1u) * of_line + own.y) / 4u \
                                   : (first + min(line + own.x, (lines - 1u) / 4u * 4u) + own.y * of_step) / 4u; \
        } \
    } \
    void name##_fetch(uint step) { \
        const uint on = along_k ? step / 4u : step * (of_step / 4u); \
        [[unroll]] for (uint i = 0u; i < name##_PASSES; ++i) name##_read[i] = from[name##_at[i] + on]; \
    } \
    void name##_fetch_edge(uint steps) { \
        [[unroll]] for (uint i = 0u; i < name##_PASSES; ++i) { \
            const bool inside = name##_own(i).y < steps; \
            const load read = from[inside ? name##_at[i] : 0u]; \
            name##_read[i] = inside ? read : load(0); \
        } \
    } \
    void name##_put(uint which) { \
        if (name##_IDS < SIZE && gl_LocalInvocationID.x >= name##_IDS) return; \
        [[unroll]] for (uint i = 0u; i < name##_PASSES; ++i) { \
            const uvec2 own = name##_own(i); \
            const uint to = which * name##_TILE + name##_of(own.y) + own.x / 4u; \
            const TILE4 values = TILE4(as_vec4(name##_read[i])); \
            if (along_k) { \
                [[unroll]] for (uint j = 0u; j < 4u; ++j) tile[to + j * (tile_lines / 4u)][own.x % 4u] = values[j]; \
            } else { \
                tile[to] = values; \
            } \
        } \
    }

DEFINE_FACTOR(rows, LOAD, a, a_tile, TILE_M, (A_ALONG_K != 0u), m, a_row, a_column)
DEFINE_FACTOR(columns, LOAD_OF_B, b, b_tile, TILE_N, (B_ALONG_N == 0u), n, b_column, b_row)

void fetch(uint step) {
    rows_fetch(step);
    columns_fetch(step);
}

void put(uint which) {
    rows_put(which);
    columns_put(which);
    barrier();
}

// The first of an invocation's blocks, down and across.
uvec2 own_block() {
    const uint id = gl_LocalInvocationID.x;
    return uvec2(id / WIDE % BLOCKS_DOWN, id % WIDE + id / (WIDE * BLOCKS_DOWN) * WIDE);
}

void multiply(uint which) {
    const uvec2 from = own_block() + which * uvec2(rows_TILE, columns_TILE);
    [[unroll]] for (uint s = 0u; s < TILE_K; ++s) {
        TILE4 left[DOWN], right[ACROSS];
        [[unroll]] for (uint i = 0u; i < DOWN; ++i) left[i] = a_tile[from.x + rows_of(s) + i * BLOCKS_DOWN];
        [[unroll]] for (uint j = 0u; j < ACROSS; ++j) right[j] = b_tile[from.y + columns_of(s) + j * BLOCKS_ACROSS];
        [[unroll]] for (uint i = 0u; i < SUMS; ++i) {
            const uint row = i / ACROSS;
            sums[i] += SUM4(left[row / 4u][row % 4u]) * SUM4(right[i % ACROSS]);
        }
    }
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

// A loop that is not written out, as the epilogue is long; the index of each sum is known, so that they stay in registers.
void store_sums(uint first, uint row, uint column) {
    const uvec2 own = own_block() * 4u;
    [[dont_unroll]] for (uint part = 0u; part < SUMS; ++part) {
        SUM4 sum = SUM4(0);
        [[unroll]] for (uint i = 0u; i < SUMS; ++i) {
            if (i == part) sum = sums[i];
        }
        const uint block = part / ACROSS / 4u;
        const uint to_row = row + own.x + block * 4u * BLOCKS_DOWN + part / ACROSS % 4u;
        const uint to_column = column + own.y + part % ACROSS * 4u * BLOCKS_ACROSS;
        store_sum(first, to_row, to_column, T4(sum));
    }
}

void compute_tile(uvec4 at, uint row, uint column) {
    [[unroll]] for (uint i = 0u; i < SUMS; ++i) sums[i] = SUM4(0);
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
