#version 450
// result[o] = the sum of x[i] * w[k] over all i, k with i * stride + k * dilation - begin = o (+ bias): one channel per group.
// Shapes: conv.glsl; w: (groups, 1, rows, kernel). One invocation computes four results a stride apart along the last axis of
// one row: they meet the same steps of the window, at places of x beside each other.
// Source: Dumoulin and Visin, A guide to convolution arithmetic for deep learning, 2016.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 12) const uint HAS_BIAS = 0;
const uint ADDS = 0u;
#include "conv.glsl"
#include "window_range.glsl"

const uvec4 NEXT = uvec4(0u, 1u, 2u, 3u);

void compute_item(uint item) {
    uint row; // of all rows of all groups and images
    const uint blocks = (result_sizes[2] + 4u * STRIDE_X - 1u) / (4u * STRIDE_X);
    const uvec3 to = split_place(item, uvec3(result_sizes[0], result_sizes[1], blocks * STRIDE_X), row);
    const uint phase = to.z / blocks;
    const uint column = phase + (to.z - phase * blocks) * 4u * STRIDE_X;
    const uint taps = kernel[0] * kernel[1] * kernel[2];
    const uint x_first = x_offset + row / rows * x_sizes[0] * x_sizes[1] * x_sizes[2];
    const uint w_first = w_offset + row % (conv_groups * rows) * taps;

    T4 sums = T4(0);
    Reach over_z = REACHED_Z(to.x);
    const Reach of_line = REACHED_Y(to.y);
    const Reach of_place = REACHED_X(column);
    for (; over_z.step < kernel[0]; over_z.step += over_z.every, over_z.place -= over_z.back) {
        Reach over_y = of_line;
        for (; over_y.step < kernel[1]; over_y.step += over_y.every, over_y.place -= over_y.back) {
            const bool line_inside = over_z.place < x_sizes[0] && over_y.place < x_sizes[1];
            const uint line = x_first + (over_z.place * x_sizes[1] + over_y.place) * x_sizes[2];
            const uint tap = w_first + (over_z.step * kernel[1] + over_y.step) * kernel[2];
            Reach over_x = of_place;
            for (; over_x.step < kernel[2]; over_x.step += over_x.every, over_x.place -= over_x.back) {
                const T weight = w[tap + over_x.step];
                const uvec4 place = over_x.place + NEXT;
                for (uint i = 0u; i < 4u; ++i) {
                    if (line_inside && place[i] < x_sizes[2]) sums[i] += x[line + place[i]] * weight;
                }
            }
        }
    }
    if (column >= result_sizes[2]) return;
    const uint line = (to.x * result_sizes[1] + to.y) * result_sizes[2];
    const uvec4 along = min(column + NEXT * STRIDE_X, uvec4(result_sizes[2] - 1u));
    store((result_sizes[2] - column + STRIDE_X - 1u) / STRIDE_X, uvec4(row), line + along, sums);
}

void main() {
    FOR_EACH_ITEM(item) compute_item(item);
}
