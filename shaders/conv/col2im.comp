#version 450
// result[o] = sum of columns[k, i] over all i, k with i * stride + k * dilation - begin = o (+ bias): the end of a transposed
// convolution that starts with a matrix product. columns: (images, rows, kernel, x_sizes), bias: (rows),
// result: (images, rows, result_sizes). One invocation gathers four results a stride apart along the last axis.
// Source: Dumoulin and Visin, A guide to convolution arithmetic for deep learning, 2016.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 12) const uint HAS_BIAS = 0;
#include "window.glsl"
layout(set = 0, binding = 0) readonly buffer Columns { T columns[]; };
layout(set = 0, binding = 1) readonly buffer Bias { T bias[]; };
layout(set = 0, binding = 2) writeonly buffer Result { T result[]; };
layout(push_constant) uniform Push {
    uint columns_offset;
    uint bias_offset;
    uint result_offset;
    uint x_sizes[3];
    uint result_sizes[3];
    uint kernel[3];
    uint begin[3];
    uint rows;
    uint first_item;
    uint last_item;
};
#include "window_range.glsl"

const uvec4 NEXT = uvec4(0u, 1u, 2u, 3u);

void compute_item(uint item) {
    uint row; // of all images
    const uint blocks = (result_sizes[2] + 4u * STRIDE_X - 1u) / (4u * STRIDE_X);
    const uvec3 to = split_place(item, uvec3(result_sizes[0], result_sizes[1], blocks * STRIDE_X), row);
    const uint phase = to.z / blocks;
    const uint column = phase + (to.z - phase * blocks) * 4u * STRIDE_X;
    const uint volume = x_sizes[0] * x_sizes[1] * x_sizes[2];
    const uint first = columns_offset + row * kernel[0] * kernel[1] * kernel[2] * volume;
    Reach over_z = REACHED_Z(to.x);
    const Reach of_line = REACHED_Y(to.y);
    const Reach of_place = REACHED_X(column);
    T4 totals = T4(0);
    for (; over_z.step < kernel[0]; over_z.step += over_z.every, over_z.place -= over_z.back) {
        Reach over_y = of_line;
        for (; over_y.step < kernel[1]; over_y.step += over_y.every, over_y.place -= over_y.back) {
            const bool line_inside = over_z.place < x_sizes[0] && over_y.place < x_sizes[1];
            const uint line = first + (over_z.place * x_sizes[1] + over_y.place) * x_sizes[2];
            const uint tap = (over_z.step * kernel[1] + over_y.step) * kernel[2];
            Reach over_x = of_place;
            for (; over_x.step < kernel[2]; over_x.step += over_x.every, over_x.place -= over_x.back) {
                const uint from = line + (tap + over_x.step) * volume;
                const uvec4 place = over_x.place + NEXT;
                for (uint i = 0u; i < 4u; ++i) {
                    if (line_inside && place[i] < x_sizes[2]) totals[i] += columns[from + place[i]];
                }
            }
        }
    }
    if (HAS_BIAS != 0u) totals += bias[bias_offset + row % rows];
    const uint line = result_offset + ((row * result_sizes[0] + to.x) * result_sizes[1] + to.y) * result_sizes[2];
    const uvec4 along = column + NEXT * STRIDE_X;
    for (uint i = 0u; i < 4u; ++i) {
        if (along[i] < result_sizes[2]) result[line + along[i]] = totals[i];
    }
}

void main() {
    FOR_EACH_ITEM(item) compute_item(item);
}
