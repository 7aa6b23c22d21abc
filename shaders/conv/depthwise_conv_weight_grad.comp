#version 450
// result[part, row, k] = the sum of g[image, row, o] * x[image, row / rows, o * stride + k * dilation - begin] over the results o
// of a part: some lines of one image. x, 0 outside: (images, channels, x_sizes), g: (images, channels * rows, counts),
// result: (images * parts, channels * rows, kernel). One invocation sums up four neighbours of the window's last axis.
// SLIDES 1, where stride is dilation along it: each value of x is read once for all four. Source: none.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint SLIDES = 0;
#include "window.glsl"
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) readonly buffer G { float g[]; };
layout(set = 0, binding = 2) writeonly buffer Result { float result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint g_offset;
    uint result_offset;
    uint x_sizes[3];
    uint counts[3];
    uint kernel[3];
    uint stride[3];
    uint dilation[3];
    uint begin[3];
    uint rows;
    uint all_rows;
    uint parts;
    uint lines; // of a part
    uint first_item;
    uint last_item;
};

const uvec4 NEXT = uvec4(0u, 1u, 2u, 3u);

// place: in a line of x, below 0 as a word that is far outside.
float load_x(bool line_inside, uint line, uint place) {
    return line_inside && place < x_sizes[2] ? x[line + place] : 0.0;
}

void compute_item(uint item) {
    uint rest;
    const uvec3 step = split_place(item, uvec3(kernel[0], kernel[1], (kernel[2] + 3u) / 4u), rest);
    const uint image_part = rest / all_rows;
    const uint row = rest - image_part * all_rows;
    const uint image = image_part / parts;
    const uint start = (image_part - image * parts) * lines;
    const uint end = min(start + lines, counts[0] * counts[1]);
    const uint plane = image * all_rows + row;
    const uint x_first = x_offset + plane / rows * x_sizes[0] * x_sizes[1] * x_sizes[2];
    const uint tap = 4u * step.z;
    const uvec4 from = (tap + NEXT) * dilation[2] - begin[2];

    vec4 sums = vec4(0.0);
    for (uint at = start; at < end; ++at) {
        const uint oz = at / counts[1];
        const uint z = oz * stride[0] + step.x * dilation[0] - begin[0];
        const uint y = (at - oz * counts[1]) * stride[1] + step.y * dilation[1] - begin[1];
        const bool inside = z < x_sizes[0] && y < x_sizes[1];
        const uint line = x_first + (z * x_sizes[1] + y) * x_sizes[2];
        const uint g_line = g_offset + (plane * counts[0] * counts[1] + at) * counts[2];
        vec4 values = vec4(0.0);
        if (SLIDES != 0u) {
            values.y = load_x(inside, line, from.x);
            values.z = load_x(inside, line, from.y);
            values.w = load_x(inside, line, from.z);
        }
        vec4 of_line = vec4(0.0); // a sum of sums loses less to rounding
        for (uint i = 0u; i < counts[2]; ++i) {
            const uvec4 place = from + i * stride[2];
            const float last = load_x(inside, line, place.w);
            if (SLIDES != 0u) {
                values = vec4(values.yzw, last);
            } else {
                values.x = load_x(inside, line, place.x);
                values.y = load_x(inside, line, place.y);
                values.z = load_x(inside, line, place.z);
                values.w = last;
            }
            of_line += values * g[g_line + i];
        }
        sums += of_line;
    }
    const uint to = result_offset + ((rest * kernel[0] + step.x) * kernel[1] + step.y) * kernel[2];
    for (uint i = 0u; i < 4u; ++i) {
        if (tap + i < kernel[2]) result[to + tap + i] = sums[i];
    }
}

void main() {
    FOR_EACH_ITEM(item) compute_item(item);
}
