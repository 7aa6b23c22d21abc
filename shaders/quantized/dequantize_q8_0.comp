#version 450
// result[r, c] = code * scale: the values of rows in q8_0 (kv_q8_0.glsl).
// words: (rows, row_words), result: (rows, columns), count of it in all.
// One workgroup strides over the values by the size of the whole dispatch.
// Source: ggml's ggml-quants.c.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "kv_q8_0.glsl"

layout(set = 0, binding = 0) readonly buffer Words { uint words[]; };
layout(set = 0, binding = 1) writeonly buffer Result { float result[]; };
layout(push_constant) uniform Push {
    uint words_offset;
    uint result_offset;
    uint count;
    uint columns;
    uint row_words;
};

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < count; i += stride) {
        const uint row = words_offset + i / columns * row_words;
        const uint column = i % columns;
        const uint four = column / 4u;
        result[result_offset + i] = q8_value(words[CODES_AT(row, four)], words[SCALES_AT(row, four)], column);
    }
}
