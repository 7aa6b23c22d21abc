#version 450
// result[o] = sum over channels and k of x[o * stride + k * dilation - begin] * w[k] (+ bias), x being 0 outside;
// TRANSPOSED 1: the sum of x[i] * w[k] over all i, k with i * stride + k * dilation - begin = o. Shapes: conv.glsl;
// w: (groups, rows, channels, kernel), transposed (groups, channels, rows, kernel). One invocation computes one place of
// four rows of a group, or of one row. Source: Dumoulin and Visin, A guide to convolution arithmetic for deep learning, 2016.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint HAS_BIAS = 0;
layout(constant_id = 4) const uint ADDS = 0;
layout(constant_id = 5) const uint ONE_ROW = 0;
#include "conv.glsl"

const uint BLOCK = ONE_ROW != 0u ? 1u : 4u;

T4 load_w(uvec4 at) {
    if (ONE_ROW != 0u) return T4(w[at.x]);
    return T4(w[at.x], w[at.y], w[at.z], w[at.w]);
}

// The place of x that a result meets at a step of the window along one axis; outside of x where there is none.
uint place_of(uint axis, uint at, uint step) {
#if TRANSPOSED
    return source_place(at + begin[axis] - step * dilation[axis], stride[axis]);
#else
    return at * stride[axis] + step * dilation[axis] - begin[axis];
#endif
}

void compute_item(uint item) {
    uint rest;
    const uvec3 to = split_place(item, AXES(result_sizes), rest);
    const uint blocks = (rows + BLOCK - 1u) / BLOCK;
    const uint first = rest % blocks * BLOCK; // row within the group
    const uint image_group = rest / blocks;
    const uint volume = x_sizes[0] * x_sizes[1] * x_sizes[2];
    const uint taps = kernel[0] * kernel[1] * kernel[2];
    const uint x_first = x_offset + (image_group * channels + start) * volume;
    // rows over the edge repeat the last one; they are not stored
    const uvec4 in_group = min(first + uvec4(0u, 1u, 2u, 3u), uvec4(rows - 1u));
#if TRANSPOSED
    const uint w_row = taps;
    const uint w_channel = rows * taps;
#else
    const uint w_row = channels * taps;
    const uint w_channel = taps;
#endif
    const uint w_group = w_offset + image_group % conv_groups * rows * channels * taps;
    const uvec4 w_first = w_group + in_group * w_row + start * w_channel;

    T4 sums = T4(0);
    uint tap = 0u;
    for (uint kz = 0u; kz < kernel[0]; ++kz) {
        const uint z = place_of(0u, to.x, kz);
        for (uint ky = 0u; ky < kernel[1]; ++ky) {
            const uint y = place_of(1u, to.y, ky);
            const uint line = (z * x_sizes[1] + y) * x_sizes[2];
            const bool line_inside = z < x_sizes[0] && y < x_sizes[1];
            for (uint kx = 0u; kx < kernel[2]; ++kx, ++tap) {
                const uint along = place_of(2u, to.z, kx);
                const bool inside = line_inside && along < x_sizes[2];
#if TRANSPOSED
                if (!inside) continue;
#endif
                uint x_at = x_first + line + along;
                uvec4 w_at = w_first + tap;
                T4 part = T4(0); // a sum of sums loses less to rounding
                for (uint channel = start; channel < end; ++channel) {
                    const T value = inside ? x[x_at] : T(0); // 0 is a value: times infinity it is NaN
                    part += value * load_w(w_at);
                    x_at += volume;
                    w_at += w_channel;
                }
                sums += part;
            }
        }
    }
    const uint place = (to.x * result_sizes[1] + to.y) * result_sizes[2] + to.z;
    store(min(BLOCK, rows - first), image_group * rows + in_group, uvec4(place), sums);
}

void main() {
    FOR_EACH_ITEM(item) compute_item(item);
}
