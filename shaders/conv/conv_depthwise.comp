#version 450
// result[o] = sum over k of x[o * stride + k * dilation - begin] * w[k] (+ bias), x being 0 outside: one channel per group.
// Shapes: conv.glsl; w: (groups, rows, 1, kernel). One invocation computes four neighbours along the last axis of one row.
// SLIDES 1, where stride is dilation along that axis: each value of x is read once for all four, as a step of the window is
// a step to the neighbour. Source: Chollet, Xception: deep learning with depthwise separable convolutions, 2017.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint HAS_BIAS = 0;
layout(constant_id = 4) const uint SLIDES = 0;
const uint ADDS = 0u;
#include "conv.glsl"

const uint BLOCK = 4u;

// place: in a line of x, below 0 as a word that is far outside.
T load_x(bool line_inside, uint line, uint place) {
    return line_inside && place < x_sizes[2] ? x[line + place] : T(0);
}

void compute_item(uint item) {
    uint row; // of all rows of all groups and images
    const uint blocks = (result_sizes[2] + BLOCK - 1u) / BLOCK;
    const uvec3 to = split_place(item, uvec3(result_sizes[0], result_sizes[1], blocks), row);
    const uint taps = kernel[0] * kernel[1] * kernel[2];
    const uint volume = x_sizes[0] * x_sizes[1] * x_sizes[2];
    const uint x_first = x_offset + row / rows * volume;
    uint w_at = w_offset + row % (conv_groups * rows) * taps;
    const uint column = to.z * BLOCK;
    const uvec4 from = (column + uvec4(0u, 1u, 2u, 3u)) * stride[2] - begin[2];

    T4 sums = T4(0);
    for (uint kz = 0u; kz < kernel[0]; ++kz) {
        const uint z = to.x * stride[0] + kz * dilation[0] - begin[0];
        for (uint ky = 0u; ky < kernel[1]; ++ky) {
            const uint y = to.y * stride[1] + ky * dilation[1] - begin[1];
            const bool inside = z < x_sizes[0] && y < x_sizes[1];
            const uint line = x_first + (z * x_sizes[1] + y) * x_sizes[2];
            T4 values = T4(0);
            if (SLIDES != 0u) {
                values.y = load_x(inside, line, from.x);
                values.z = load_x(inside, line, from.y);
                values.w = load_x(inside, line, from.z);
            }
            for (uint kx = 0u; kx < kernel[2]; ++kx, ++w_at) {
                const uvec4 place = from + kx * dilation[2];
                const T last = load_x(inside, line, place.w);
                if (SLIDES != 0u) {
                    values = T4(values.yzw, last);
                } else {
                    values.x = load_x(inside, line, place.x);
                    values.y = load_x(inside, line, place.y);
                    values.z = load_x(inside, line, place.z);
                    values.w = last;
                }
                sums += values * w[w_at];
            }
        }
    }
    const uint line = (to.x * result_sizes[1] + to.y) * result_sizes[2];
    const uvec4 along = min(column + uvec4(0u, 1u, 2u, 3u), uvec4(result_sizes[2] - 1u));
    store(result_sizes[2] - column, uvec4(row), line + along, sums);
}

void main() {
    FOR_EACH_ITEM(item) compute_item(item);
}
