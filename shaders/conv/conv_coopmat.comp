#version 450
// result[o] = sum over channels and k of x[o * stride + k * dilation - begin] * w[k] (+ bias), x being 0 outside, as the product of w,
// a matrix of rows by channels * taps for each group, and the windows of all images, one to a column: float16, summed in float32.
// Shapes: conv.glsl; w: (groups, rows, channels * taps), of lines that are packed to whole vec4s. One workgroup of invocations computes
// a tile of one group's rows and of columns; it gathers the windows as they go to shared memory. For devices with cooperative matrices.
// Source: Chetlur et al., cuDNN: efficient primitives for deep learning, 2014.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 10) const uint GUARDED = 0; // of the last axes, those where a window may reach over the edge
layout(constant_id = 11) const uint HAS_BIAS = 0;
layout(constant_id = 12) const uint KERNEL_Z = 1; // `kernel`, as dividing by what is known takes little
layout(constant_id = 13) const uint KERNEL_Y = 1;
layout(constant_id = 14) const uint KERNEL_X = 1;
const uint ADDS = 0u;
#define T float
#define T4 vec4
#define LOAD_OF_W vec4
#include "conv.glsl"
#include "conv_windows.glsl"
#include "coopmat.glsl"
#include "fp16_operands.glsl"

const uint PASSES = TILE_N * EIGHTS / SIZE;
const uint PLACES = TILE_N > SIZE ? TILE_N / SIZE : 1u; // columns of an invocation, which are the same for every eight

// Of each of TILE_K steps the words from a window's first place, and the places along each axis.
shared uvec4 taps[TILE_K];
float windows_read[PASSES * 8u];
uint windows_at[PLACES];
uvec3 windows_from[PLACES];

DEFINE_FACTOR(weights, vec4, 4u, w, a_tile, TILE_M, 1u, 0u, rows, W_LINE, 1u)

// The column in the tile, and the eight.
uvec2 windows_own(uint pass) {
    const uint id = gl_LocalInvocationID.x + pass * SIZE;
    return uvec2(id % TILE_N, id / TILE_N);
}

void windows_start(uint group, uint column) {
    [[unroll]] for (uint i = 0u; i < PLACES; ++i) {
        windows_at[i] = window_start(group, column + windows_own(i).x, windows_from[i]);
    }
}

// Writes the taps from `step` on; those from `end` on are outside.
void find_taps(uint step, uint end) {
    for (uint i = gl_LocalInvocationID.x; i < TILE_K; i += SIZE) {
        taps[i] = tap_of(step + i, step + i < min(end, channels * STEPS_OF_CHANNEL));
    }
}

// guarded: of the last axes, those where a place may be outside.
void windows_fetch(uint guarded) {
    [[unroll]] for (uint i = 0u; i < PASSES; ++i) {
        const uint place = i % PLACES;
        [[unroll]] for (uint j = 0u; j < 8u; ++j) {
            const uvec4 tap = taps[windows_own(i).y * 8u + j];
            windows_read[i * 8u + j] = window_value(windows_at[place], windows_from[place], tap, guarded);
        }
    }
}

vec4 windows_vec4(uint at) {
    return vec4(windows_read[at], windows_read[at + 1u], windows_read[at + 2u], windows_read[at + 3u]);
}

// Puts what was fetched into shared memory, and there the taps that are to be fetched next.
void put(uint next) {
    barrier(); // the tiles of the step before have been read
    weights_put();
    [[unroll]] for (uint i = 0u; i < PASSES; ++i) {
        const uvec2 own = windows_own(i);
        b_tile[own.x * LINE + own.y] = uvec4(pack_fp16x4(windows_vec4(i * 8u)), pack_fp16x4(windows_vec4(i * 8u + 4u)));
    }
    find_taps(next, W_LINE);
    barrier();
}

void store4(uint group, uint row, uint column, vec4 values) {
    store_columns(0u, group, row, column, values);
}

void compute_tile(uint group, uint row, uint column) {
    clear_sums();
    weights_start(w_offset + group * rows * W_LINE, row);
    windows_start(group, column);
    // The steps over an edge come first, so that all other steps are whole. Each tile is loaded while the one before is multiplied.
    uint step = W_LINE % TILE_K;
    find_taps(0u, step > 0u ? step : TILE_K);
    barrier();
    if (step > 0u) {
        weights_fetch_edge(step);
        windows_fetch(max(GUARDED, 1u));
    } else {
        step = TILE_K;
        weights_fetch(0u);
        windows_fetch(GUARDED);
    }
    for (; step < W_LINE; step += TILE_K) {
        put(step);
        weights_fetch(step);
        windows_fetch(GUARDED);
        multiply();
    }
    put(step);
    multiply();
    store_sums(group, row, column);
    barrier(); // what all have read, the next tile writes
}

// Tiles of the same columns follow each other, as they read the same of x.
void main() {
    const uint down = (rows + TILE_M - 1u) / TILE_M;
    const uint across = (COLUMNS + TILE_N - 1u) / TILE_N;
    for (uint tile = first_item + gl_WorkGroupID.x; tile < last_item; tile += gl_NumWorkGroups.x) {
        const uint rest = tile / down;
        compute_tile(rest / across, tile % down * TILE_M, rest % across * TILE_N);
    }
}
