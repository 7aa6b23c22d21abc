#version 450
// result[o] = sum over channels and k of x[o * stride + k * dilation - begin] * w[k] (+ bias), x being 0 outside, as the product of w,
// a matrix of rows by channels * taps for each group, and the windows of all images, one to a column, which are gathered on their way to
// shared memory: no buffer holds them. Shapes: conv.glsl; w: (groups, rows, channels * taps), of lines that are packed to whole vec4s.
// One workgroup computes a tile of one group's rows and of columns (vec4_tile.glsl). With PARTS > 1 it sums `end` channels alone, and
// result is (parts, images, groups * rows, result_sizes), which splitk_reduce adds. For GPUs.
// Source: Chetlur et al., cuDNN: efficient primitives for deep learning, 2014.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 7) const uint GUARDED = 0; // of the last axes, those where a window may reach over the edge
layout(constant_id = 8) const uint HAS_BIAS = 0;
layout(constant_id = 9) const uint KERNEL_Z = 1; // `kernel`, as dividing by what is known takes little
layout(constant_id = 10) const uint KERNEL_Y = 1;
layout(constant_id = 11) const uint KERNEL_X = 1;
layout(constant_id = 12) const uint PARTS = 1;
const uint ADDS = 0u;
#define T float
#define T4 vec4
#define TILE4 vec4
#define SUM4 vec4
#define LOAD_OF_W vec4
#include "conv.glsl"
#include "conv_windows.glsl"
#include "load_vec4.glsl"
#include "vec4_tile.glsl"

const uint TAPS = 4u * TILE_K; // steps whose taps are found at a time
const uint OWN_STEPS = TILE_K * TILE_N / SIZE; // of an invocation, in one column

// Of each step the words from a window's first place, and the places along each axis.
shared uvec4 taps[2u * TAPS];
const uint columns_TILE = TILE_K * TILE_N / 4u;
shared vec4 b_tile[2u * columns_TILE];
float columns_read[OWN_STEPS];
uint columns_at;
uvec3 columns_from;

DEFINE_FACTOR(rows, vec4, w, a_tile, TILE_M, true, rows, W_LINE, 1u)

uint columns_of(uint step) { return step * (TILE_N / 4u); }

// The column in the tile, and the first of its steps.
uvec2 columns_own() {
    const uint id = gl_LocalInvocationID.x;
    return uvec2(id % TILE_N, id / TILE_N * OWN_STEPS);
}

void columns_start(uint group, uint column) {
    columns_at = window_start(group, column + columns_own().x, columns_from);
}

// Writes the taps of a block of four tiles, of which the first of all has `edge` steps; those at `last` and beyond are outside.
void find_taps(uint block, uint first, uint edge, uint last) {
    for (uint i = gl_LocalInvocationID.x; i < TAPS; i += SIZE) {
        const uint at = block * TAPS + i;
        const uint step = first + (at < TILE_K ? at : at - TILE_K + edge);
        taps[block % 2u * TAPS + i] = tap_of(step, step < last && (at < edge || at >= TILE_K));
    }
}

// guarded: of the last axes, those where a place may be outside.
void columns_fetch(uint tile, uint guarded) {
    [[unroll]] for (uint j = 0u; j < OWN_STEPS; ++j) {
        const uvec4 tap = taps[tile * TILE_K % (2u * TAPS) + columns_own().y + j];
        columns_read[j] = window_value(columns_at, columns_from, tap, guarded);
    }
}

void columns_put(uint which) {
    const uvec2 own = columns_own();
    [[unroll]] for (uint j = 0u; j < OWN_STEPS; ++j) {
        b_tile[which * columns_TILE + columns_of(own.y + j) + own.x / 4u][own.x % 4u] = columns_read[j];
    }
}

// first: of all groups, those of the parts before included.
void store_sum(uint first, uint row, uint column, vec4 sum) {
    store_columns(first / conv_groups, first % conv_groups, row, column, sum);
}

#include "vec4_multiply.glsl"

void put(uint which) {
    rows_put(which);
    columns_put(which);
    barrier();
}

void compute_tile(uint part, uint group, uint row, uint column) {
    const uint first = part * end * STEPS_OF_CHANNEL;
    const uint steps = min(W_LINE - first, part + 1u < PARTS ? end * STEPS_OF_CHANNEL : W_LINE);
    const uint edge = (steps - 1u) % TILE_K + 1u;
    const uint last = min(first + steps, channels * STEPS_OF_CHANNEL);
    clear_sums();
    rows_start(w_offset + group * rows * W_LINE + first, row);
    columns_start(group, column);
    // The steps over an edge come first, so that all other steps are whole. Each tile is loaded while the one before is multiplied.
    find_taps(0u, first, edge, last);
    barrier();
    rows_fetch_edge(edge);
    columns_fetch(0u, max(GUARDED, 1u));
    put(0u);
    uint which = 0u;
    for (uint tile = 1u; tile * TILE_K < steps - edge + TILE_K; ++tile) {
        rows_fetch(edge + (tile - 1u) * TILE_K);
        columns_fetch(tile, GUARDED);
        if (tile % 4u == 1u) find_taps(tile / 4u + 1u, first, edge, last);
        multiply(which);
        which = 1u - which;
        put(which);
    }
    multiply(which);
    store_sums(part * conv_groups + group, row, column);
    barrier(); // what all have read, the next tile writes
}

// Tiles of the same columns follow each other, as they read the same of x.
void main() {
    const uint down = (rows + TILE_M - 1u) / TILE_M;
    const uint across = (COLUMNS + TILE_N - 1u) / TILE_N;
    for (uint tile = first_item + gl_WorkGroupID.x; tile < last_item; tile += gl_NumWorkGroups.x) {
        const uint column = tile / down % across, of = tile / down / across;
        compute_tile(of / conv_groups, of % conv_groups, tile % down * TILE_M, column * TILE_N);
    }
}
