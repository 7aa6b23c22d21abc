#version 450
// result[m, n] = sum over k of a[m, k] * b[n, k] (+ bias) for few rows m, of quantized weights b (quant_block.glsl) and codes a of 8 bits.
// a: (m, runs, 12) as quantize_activations.comp writes them. Words of four codes meet by integer dot products (OpSDot, 4450, of packed words,
// 6018 and 6019), whose sums are exact. One workgroup computes ROWS rows of some columns, as quant_gemv.comp does. For GPUs.
// Source: none.
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_spirv_intrinsics : require
layout(local_size_x = 32, local_size_y = 4, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint ROWS = 1;
#define T float
#define T4 vec4
#define LOAD uvec4
#include "load_words.glsl"
#include "quant_formats.glsl"
#include "matmul.glsl"
VIEWS(1, b)
#include "quant_block.glsl"

#include "q8_dot.glsl"

const uint VEC4S_PER_GROUP = gl_WorkGroupSize.y;
const uint SLICES = gl_WorkGroupSize.x;
const uint VEC4S_PER_RUN = 3u; // of a
shared vec4 slices[VEC4S_PER_GROUP * SLICES];

// from: where the first row of a starts.
void compute_tile(uint tile, uint from, uint column, uint own, uint slice) {
    const uint row = tile * ROWS;
    const uvec2 matrix = matrix_of_tile(tile);
    vec4 sums[ROWS];
    uint a_at[ROWS];
    for (uint i = 0u; i < ROWS; ++i) {
        sums[i] = vec4(0.0);
        a_at[i] = (a_offset + from + min(i, m - 1u - row) * a_row) / 4u;
    }
    for (uint number = slice; number < matrix.y / 32u; number += SLICES) {
        const Spot spot = spot_of(number % 8u);
        ivec4 low[4], more[4];
        vec2 scale[4], shift[4];
        for (uint j = 0u; j < 4u; ++j) {
            const uint start = (matrix.x + min(column + j, n - 1u) * b_column) / UNIT;
            const uint at = start + units_before(number / 8u);
            const Head head = head_of(start, number / 8u, at);
            const Scales scales = scales_of(head, spot);
            const Run run = run_of(head, at, spot.number);
            scale[j] = scales.scale;
            shift[j] = SHIFT_OF(scales);
            low[j] = SIGNED_OF(run.low);
            more[j] = SIGNED_OF(run.more);
        }
        for (uint i = 0u; i < ROWS; ++i) {
            const uint at = a_at[i] + number * VEC4S_PER_RUN;
            const uvec4 left_low = a[at], left_more = a[at + 1u];
            const vec4 scale_sums = uintBitsToFloat(a[at + 2u]);
#if PARTS == 2
            const vec2 all = scale_sums.yz;
#else
            const vec2 all = vec2(scale_sums.y + scale_sums.z, 0.0);
#endif
            for (uint j = 0u; j < 4u; ++j) {
                sums[i][j] = plus_run(sums[i][j], sums_of(low[j], more[j], left_low, left_more), scale[j], scale_sums.x, all, shift[j]);
            }
        }
    }
    for (uint i = 0u; i < ROWS; ++i) {
        barrier(); // the slices of the row before have been read
        slices[slice * VEC4S_PER_GROUP + own] = sums[i];
        for (uint apart = SLICES / 2u; apart > 0u; apart /= 2u) {
            barrier();
            if (slice < apart) slices[slice * VEC4S_PER_GROUP + own] += slices[(slice + apart) * VEC4S_PER_GROUP + own];
        }
        if (slice == 0u) store4(result_offset, row + i, column, slices[own]);
    }
}

void main() {
    const uvec2 lane = gl_LocalInvocationID.yx;
    const uint tiles = (m + ROWS - 1u) / ROWS;
    for (uint tile = gl_WorkGroupID.y; tile < tiles; tile += gl_NumWorkGroups.y) {
        const uint across = tile / batches;
        const uint from = across * a_batch[0] + (tile - across * batches) * a_batch[1];
        for (uint first = gl_WorkGroupID.x * VEC4S_PER_GROUP; first * 4u < n; first += gl_NumWorkGroups.x * VEC4S_PER_GROUP) {
            compute_tile(tile, from, (first + lane.x) * 4u, lane.x, lane.y);
        }
    }
}
