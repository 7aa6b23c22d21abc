#version 450
// result[row, column] = sum over words of a[row] * b[column], less what zero points take off (int8.glsl): products of int8, summed
// in int32. a: (rows, depth) words behind 4 with the zero point, b: tiles of 16 columns, result: rows and columns at steps of their own.
// One workgroup of SUBGROUPS_DOWN x SUBGROUPS_ACROSS subgroups computes a tile, each subgroup DOWN x ACROSS cooperative matrices of it.
// Each tile of words is loaded while the one before is multiplied; the sums of rows of a are added up on the way. For devices with
// cooperative matrices of int8.
// Source: NVIDIA, CUTLASS: efficient GEMM in CUDA, 2017 (tiles of groups, of subgroups and of matrix instructions).
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_int8 : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#define OF_CODES
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "int8.glsl"
#include "coopmat.glsl"

const uint WORDS = TILE_K / 4u;
const uint A_TURNS = TILE_M * EIGHTS / SIZE;
const uint B_TURNS = TILE_N * EIGHTS / SIZE;
uvec2 a_read[A_TURNS];
uvec2 b_read[B_TURNS];
uint a_at[A_TURNS];
uint b_at[B_TURNS];
int of_row[A_TURNS];
shared int row_sums[TILE_M];

// The line in the tile, and the eight, that an invocation loads in turn.
uvec2 a_own(uint pass) {
    const uint id = gl_LocalInvocationID.x + pass * SIZE;
    return uvec2(id / EIGHTS, id % EIGHTS);
}

uvec2 b_own(uint pass) {
    const uint id = gl_LocalInvocationID.x + pass * SIZE;
    return uvec2(id % TILE_N, id / TILE_N);
}

void start(uint row, uint column) {
    [[unroll]] for (uint i = 0u; i < A_TURNS; ++i) {
        a_at[i] = row_of(row + a_own(i).x) + a_own(i).y * 2u;
        of_row[i] = 0;
    }
    [[unroll]] for (uint i = 0u; i < B_TURNS; ++i) {
        b_at[i] = first_of(column + b_own(i).x) + (b_own(i).y * 2u + 1u) * 16u;
    }
    barrier(); // those of the tile before have been read
    for (uint i = gl_LocalInvocationID.x; i < TILE_M; i += SIZE) row_sums[i] = 0;
}

void fetch(uint word) {
    [[unroll]] for (uint i = 0u; i < A_TURNS; ++i) a_read[i] = uvec2(a[a_at[i] + word], a[a_at[i] + word + 1u]);
    [[unroll]] for (uint i = 0u; i < B_TURNS; ++i) {
        b_read[i] = uvec2(b[b_at[i] + word * 16u], b[b_at[i] + word * 16u + 16u]);
    }
}

// The first `words`, fewer than WORDS; the others are 0.
void fetch_edge(uint words) {
    [[unroll]] for (uint c = 0u; c < 2u; ++c) {
        [[unroll]] for (uint i = 0u; i < A_TURNS; ++i) {
            const bool inside = a_own(i).y * 2u + c < words;
            const uint read = a[inside ? a_at[i] + c : a_offset];
            a_read[i][c] = inside ? read : 0u;
        }
        [[unroll]] for (uint i = 0u; i < B_TURNS; ++i) {
            const bool inside = b_own(i).y * 2u + c < words;
            const uint read = b[inside ? b_at[i] + c * 16u : b_offset];
            b_read[i][c] = inside ? read : 0u;
        }
    }
}

void put() {
    barrier(); // the tiles of the step before have been read
    [[unroll]] for (uint i = 0u; i < A_TURNS; ++i) {
        a_tile[a_own(i).x * LINE + a_own(i).y] = a_read[i];
        of_row[i] += summed(codes(a_read[i].x), ONES) + summed(codes(a_read[i].y), ONES);
    }
    [[unroll]] for (uint i = 0u; i < B_TURNS; ++i) b_tile[b_own(i).x * LINE + b_own(i).y] = b_read[i];
    barrier();
}

// first: the first row of the tile.
void store4(uint first, uint row, uint column, ivec4 values) {
    const uint at = result_of(row);
    for (uint c = 0u; c < 4u; ++c) store(at, row, column + c, values[c], row_sums[row - first]);
}

void compute_tile(uint row, uint column) {
    clear_sums();
    start(row, column);
    // The steps over an edge come first, so that all other steps are whole.
    uint word = depth % WORDS;
    if (word > 0u) {
        fetch_edge(word);
    } else {
        fetch(0u);
        word = WORDS;
    }
    for (; word < depth; word += WORDS) {
        put();
        fetch(word);
        multiply();
    }
    put();
    multiply();
    [[unroll]] for (uint i = 0u; i < A_TURNS; ++i) atomicAdd(row_sums[a_own(i).x], of_row[i]);
    store_sums(row, row, column);
}

void main() {
    for (uint column = gl_WorkGroupID.x * TILE_N; column < columns; column += gl_NumWorkGroups.x * TILE_N) {
        compute_tile(gl_WorkGroupID.y * TILE_M, column);
    }
}
