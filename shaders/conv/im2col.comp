#version 450
// result[image, channel, k, p - first_place] = x[image, channel, o * stride + k * dilation - begin], 0 outside, o being place p
// of the convolution's result. x: (images, channels, x_sizes), result: (images, channels, kernel, row), of which `places` are
// written, and after the last channel of each image `zeros` more lines of 0; both as words.
// One invocation writes all values of a window in one channel; neighbours write neighbours. A convolution is then a matrix
// product. Source: Chellapilla, Puri and Simard, High performance convolutional neural networks for document processing, 2006.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "window.glsl"
layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint result_offset;
    uint x_sizes[3];
    uint result_sizes[3];
    uint kernel[3];
    uint stride[3];
    uint dilation[3];
    uint begin[3];
    uint first_place;
    uint places;
    uint channels;
    uint row;
    uint zeros;
    uint first_item;
    uint last_item;
};

void compute_item(uint item) {
    const uint channel = item / places; // of all images
    const uint place = item - channel * places;
    uint none;
    const uvec3 from = split_place(first_place + place, AXES(result_sizes), none) * AXES(stride) - AXES(begin);
    const uint x_first = x_offset + channel * x_sizes[0] * x_sizes[1] * x_sizes[2];
    const uint image = channel / channels;
    uint to = result_offset + (channel * kernel[0] * kernel[1] * kernel[2] + image * zeros) * row + place;
    for (uint kz = 0u; kz < kernel[0]; ++kz) {
        const uint z = from.x + kz * dilation[0];
        for (uint ky = 0u; ky < kernel[1]; ++ky) {
            const uint y = from.y + ky * dilation[1];
            const uint line = x_first + (z * x_sizes[1] + y) * x_sizes[2];
            const bool line_inside = z < x_sizes[0] && y < x_sizes[1];
            for (uint kx = 0u; kx < kernel[2]; ++kx, to += row) {
                const uint along = from.z + kx * dilation[2];
                result[to] = line_inside && along < x_sizes[2] ? x[line + along] : 0u;
            }
        }
    }
    const uint after = channel - image * channels == channels - 1u ? zeros : 0u;
    for (uint i = 0u; i < after; ++i, to += row) result[to] = 0u;
}

void main() {
    FOR_EACH_ITEM(item) compute_item(item);
}
