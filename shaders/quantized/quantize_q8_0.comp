#version 450
// result[r] = x[r] in tiles of 64 values: a word of two scales, largest / 127 as float16, then codes, round(x / scale), four in a word.
// x: (rows, columns), result: (rows, row_words).
// One invocation makes a tile; a group strides over tiles by the size of the whole dispatch.
// Source: ggml's ggml-quants.c.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "float_math.glsl"
#include "fp16.glsl"
#include "quotient.glsl"

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint result_offset;
    uint rows;
    uint columns;
    uint row_words;
};

// The largest size of some values; NaN where one is, whose word is above all others.
float largest_of(uint first, uint count) {
    uint largest = 0u;
    for (uint i = 0u; i < count; ++i) largest = max(largest, floatBitsToUint(x[first + i]) & 0x7fffffffu);
    return uintBitsToFloat(largest);
}

// Half away from zero. What is not finite has a scale that says so.
int code_of(float scaled) {
    if (is_nan(scaled) || is_inf(scaled)) return 0;
    const float size = abs(scaled);
    const float whole = floor(size);
    return int(sign(scaled) * (whole + floor(2.0 * (size - whole))));
}

void main() {
    const uint tiles = (columns + 63u) / 64u;
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < rows * tiles; i += stride) {
        const uint row = i / tiles;
        const uint tile = i % tiles;
        const uint at = result_offset + row * row_words + tile * 17u;
        uint scales = 0u;
        for (uint run = 0u; run < 2u; ++run) {
            const uint column = tile * 64u + run * 32u;
            const uint count = min(32u, columns - min(column, columns));
            const uint first = x_offset + row * columns + column;
            const float scale = rounded_quotient(largest_of(first, count), 127.0);
            const float by = scale == 0.0 ? 0.0 : rounded_quotient(1.0, scale);
            scales |= float_to_fp16(scale) << 16u * run;
            for (uint start = 0u; start < count; start += 4u) {
                uint codes = 0u;
                const uint behind = min(count - start, 4u);
                for (uint c = 0u; c < behind; ++c) codes |= (uint(code_of(x[first + start + c] * by)) & 255u) << 8u * c;
                result[at + 1u + 8u * run + start / 4u] = codes;
            }
        }
        result[at] = scales;
    }
}
