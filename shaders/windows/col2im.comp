#version 450
// result[o] = sum of columns[k, i] over all i, k with i * stride + k * dilation - begin = o (+ bias): the end of a transposed
// convolution that starts with a matrix product. columns: (images, rows, kernel, x_sizes), bias: (rows),
// result: (images, rows, result_sizes). One invocation gathers one result at a time.
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
#include "reach.glsl"

void compute_item(uint item) {
    uint row; // of all images
    const uvec3 at = split_place(item, AXES(result_sizes), row);
    const uint volume = x_sizes[0] * x_sizes[1] * x_sizes[2];
    const uint first = columns_offset + row * kernel[0] * kernel[1] * kernel[2] * volume;
    Reach over_z = REACHED_Z(at.x);
    const Reach of_line = REACHED_Y(at.y);
    const Reach of_place = REACHED_X(at.z);
    T total = T(0);
    for (; over_z.step < kernel[0]; over_z.step += over_z.every, over_z.place -= over_z.back) {
        Reach over_y = of_line;
        for (; over_y.step < kernel[1]; over_y.step += over_y.every, over_y.place -= over_y.back) {
            const bool line_inside = over_z.place < x_sizes[0] && over_y.place < x_sizes[1];
            const uint line = first + (over_z.place * x_sizes[1] + over_y.place) * x_sizes[2];
            const uint tap = (over_z.step * kernel[1] + over_y.step) * kernel[2];
            Reach over_x = of_place;
            for (; over_x.step < kernel[2]; over_x.step += over_x.every, over_x.place -= over_x.back) {
                if (line_inside && over_x.place < x_sizes[2]) {
                    total += columns[line + over_x.place + (tap + over_x.step) * volume];
                }
            }
        }
    }
    if (HAS_BIAS != 0u) total += bias[bias_offset + row % rows];
    result[result_offset + item] = total;
}

void main() {
    FOR_EACH_ITEM(item) compute_item(item);
}
