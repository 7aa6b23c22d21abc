#version 450
// result[row, tap, word] = four channels of x at the place that a window meets with a tap, as codes with a sign: x ^ flip in 8 bits,
// the zero point outside of x, 0 for missing channels. x: codes of images, result: 4 words, the zero point less flip first, then
// rows first_row .. first_row + rows - 1 of the windows of all images, one image after the other.
// With VALUES x - zero as float32 instead, 0 outside of x, in parts of 256 codes: result: (parts, rows, codes of the part).
// One invocation makes a word, or four values; a group strides over words by the size of the whole dispatch.
// Source: Chellapilla, Puri and Simard, High performance convolutional neural networks for document processing, 2006.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;

layout(set = 0, binding = 0) readonly buffer X { int x[]; };
layout(set = 0, binding = 1) readonly buffer Zero { int zero[]; };
#ifdef VALUES
layout(set = 0, binding = 2) writeonly buffer Result { float result[]; };
#else
layout(set = 0, binding = 2) writeonly buffer Result { uint result[]; };
#endif
layout(push_constant) uniform Push {
    uint x_offset;
    uint zero_offset;
    uint result_offset;
    uint x_sizes[3];
    uint result_sizes[3];
    uint kernel[3];
    uint stride[3];
    uint dilation[3];
    uint begin[3];
    uint place_step;
    uint channel_step;
    uint image_step;
    uint first;
    uint channels;
    uint flip;
    uint first_row;
    uint rows;
};

// Index along each of three axes.
uvec3 split(uint index, uint y, uint z) {
    const uint line = index / z;
    const uint plane = line / y;
    return uvec3(plane, line - plane * y, index - line * z);
}

uint word_of(uint item, uint groups, uint taps) {
    const uint line = item / groups;
    const uint channel = (item - line * groups) * 4u;
    const uint row = line / taps;
    const uint places = result_sizes[0] * result_sizes[1] * result_sizes[2];
    const uint image = (first_row + row) / places;
    const uvec3 window = split(first_row + row - image * places, result_sizes[1], result_sizes[2]);
    const uvec3 tap = split(line - row * taps, kernel[1], kernel[2]);
    const uint place_z = window.x * stride[0] + tap.x * dilation[0] - begin[0];
    const uint place_y = window.y * stride[1] + tap.y * dilation[1] - begin[1];
    const uint place_x = window.z * stride[2] + tap.z * dilation[2] - begin[2];
    const bool inside = place_z < x_sizes[0] && place_y < x_sizes[1] && place_x < x_sizes[2];
    const uint place = (place_z * x_sizes[1] + place_y) * x_sizes[2] + place_x;
    const uint at = x_offset + first + image * image_step + (inside ? place * place_step + channel * channel_step : 0u);
    const uint outside = uint(zero[zero_offset]) & 0xffu;
    const uint count = min(channels - channel, 4u);
    uint word = 0u;
    for (uint c = 0u; c < count; ++c) {
        uint code = outside;
        if (inside) code = uint(x[at + c * channel_step]) & 0xffu;
        word |= (code ^ flip) << 8u * c;
    }
    return word;
}

#ifdef VALUES
void store(uint item, uint depth, uint groups, uint word) {
    const uint row = item / depth;
    const uint first = item - row * depth;
    const uint part = first / 64u;
    const uint codes = min(256u, 4u * depth - 256u * part);
    const uint at = result_offset + 256u * part * rows + row * codes + 4u * (first - 64u * part);
    const uint count = min(channels - first % groups * 4u, 4u);
    for (uint c = 0u; c < 4u; ++c) {
        const int code = (int(word >> 8u * c << 24u) >> 24) + int(flip);
        result[at + c] = c < count ? float(code - zero[zero_offset]) : 0.0;
    }
}
#endif

void main() {
    const uint groups = (channels + 3u) / 4u;
    const uint taps = kernel[0] * kernel[1] * kernel[2];
    const uint step = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
#ifndef VALUES
    if (gl_GlobalInvocationID.x == 0u) result[result_offset] = uint(zero[zero_offset]) - flip;
#endif
    for (uint item = gl_GlobalInvocationID.x; item < rows * taps * groups; item += step) {
#ifdef VALUES
        store(item, taps * groups, groups, word_of(item, groups, taps));
#else
        result[result_offset + 4u + item] = word_of(item, groups, taps);
#endif
    }
}
