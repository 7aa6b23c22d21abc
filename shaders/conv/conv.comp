#version 450
// result[o] = sum over channels and k of x[o * stride + k * dilation - begin] * w[k] (+ bias), x being 0 outside;
// TRANSPOSED 1: the sum of x[i] * w[k] over all i, k with i * stride + k * dilation - begin = o. Shapes: conv.glsl;
// w: (groups, rows, channels, kernel), transposed (groups, channels, rows, kernel). One invocation computes one place of
// four rows of a group, or of one row. Source: Dumoulin and Visin, A guide to convolution arithmetic for deep learning, 2016.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 12) const uint HAS_BIAS = 0;
layout(constant_id = 13) const uint ADDS = 0;
layout(constant_id = 14) const uint ONE_ROW = 0;
#include "conv.glsl"

const uint BLOCK = ONE_ROW != 0u ? 1u : 4u;

T4 load_w(uvec4 at) {
    if (ONE_ROW != 0u) return T4(w[at.x]);
    return T4(w[at.x], w[at.y], w[at.z], w[at.w]);
}

#include "window_range.glsl"
#if TRANSPOSED
#define REACH_Z REACHED_Z
#define REACH_Y REACHED_Y
#define REACH_X REACHED_X
#else
#define REACH_Z(at) Reach(0u, (at) * stride[0] - begin[0], 1u, -dilation[0])
#define REACH_Y(at) Reach(0u, (at) * stride[1] - begin[1], 1u, -dilation[1])
#define REACH_X(at) Reach(0u, (at) * stride[2] - begin[2], 1u, -dilation[2])
#endif

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
    Reach over_z = REACH_Z(to.x);
    const Reach of_line = REACH_Y(to.y);
    const Reach of_place = REACH_X(to.z);
    for (; over_z.step < kernel[0]; over_z.step += over_z.every, over_z.place -= over_z.back) {
        Reach over_y = of_line;
        for (; over_y.step < kernel[1]; over_y.step += over_y.every, over_y.place -= over_y.back) {
            const bool line_inside = over_z.place < x_sizes[0] && over_y.place < x_sizes[1];
            const uint line = x_first + (over_z.place * x_sizes[1] + over_y.place) * x_sizes[2];
            const uint tap = (over_z.step * kernel[1] + over_y.step) * kernel[2];
            Reach over_x = of_place;
            for (; over_x.step < kernel[2]; over_x.step += over_x.every, over_x.place -= over_x.back) {
                const bool inside = line_inside && over_x.place < x_sizes[2];
#if TRANSPOSED
                if (!inside) continue;
#endif
                uint x_at = line + over_x.place;
                uvec4 w_at = w_first + tap + over_x.step;
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
