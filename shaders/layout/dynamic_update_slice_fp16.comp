#version 450
// result[slice, start + r, c] = rows[slice, r, c] where 0 <= start + r < size, of float16, two a word; all else of the result stays as it is.
// rows: (slices, many, inner), float16 too, or with FLOAT_ROWS float32, which is rounded; with OVERFLOW_NAN to NaN beyond float16's range. start: one int for every `shared_slices`, or with slots a pair of a start and the slot that takes these slices, result: (slices, size, inner), with rows of no whole words.
// One workgroup strides over the words that the rows of all slices may touch, `each` of a slice; a word of two slices is the first one's.
// Source: none.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;

layout(set = 0, binding = 0) readonly buffer Rows { uint rows[]; };
layout(set = 0, binding = 1) readonly buffer Start { int start[]; };
layout(set = 0, binding = 2) buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint rows_offset;
    uint start_offset;
    uint result_offset;
#include "dynamic_update_slice_fp16_push.glsl"
};
uint row_word(uint i) { return rows[rows_offset + i]; }
void write_word(uint i, uint word) { result[result_offset + i] = word; }
uint word_of_result(uint i) { return result[result_offset + i]; }
#include "dynamic_update_slice_fp16.glsl"
