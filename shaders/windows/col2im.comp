#version 450
// result[o] = sum of columns[k, i] over all i, k with i * stride + k * dilation - begin = o (+ bias): the end of a transposed
// convolution that starts with a matrix product. columns: (images, rows, kernel, x_sizes), bias: (rows),
// result: (images, rows, result_sizes). One invocation gathers one result at a time.
// Source: Dumoulin and Visin, A guide to convolution arithmetic for deep learning, 2016.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint HAS_BIAS = 0;
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
    uint stride[3];
    uint dilation[3];
    uint begin[3];
    uint rows;
    uint first_item;
    uint last_item;
};

void compute_item(uint item) {
    uint row; // of all images
    const uvec3 at = split_place(item, AXES(result_sizes), row);
    const uint volume = x_sizes[0] * x_sizes[1] * x_sizes[2];
    uint first = columns_offset + row * kernel[0] * kernel[1] * kernel[2] * volume;
    T total = T(0);
    for (uint kz = 0u; kz < kernel[0]; ++kz) {
        const uint z = source_place(at.x + begin[0] - kz * dilation[0], stride[0]);
        for (uint ky = 0u; ky < kernel[1]; ++ky) {
            const uint y = source_place(at.y + begin[1] - ky * dilation[1], stride[1]);
            const bool line_inside = z < x_sizes[0] && y < x_sizes[1];
            const uint line = (z * x_sizes[1] + y) * x_sizes[2];
            for (uint kx = 0u; kx < kernel[2]; ++kx, first += volume) {
                const uint along = source_place(at.z + begin[2] - kx * dilation[2], stride[2]);
                if (line_inside && along < x_sizes[2]) total += columns[first + line + along];
            }
        }
    }
    if (HAS_BIAS != 0u) total += bias[bias_offset + row % rows];
    result[result_offset + item] = total;
}

void main() {
    FOR_EACH_ITEM(item) compute_item(item);
}
