#version 450
// Of up to 11 states and their rows: result[slice, start + r, c] = rows[slice, r, c] where 0 <= start + r < size, of float16, two a word; all else of the result stays as it is.
// rows: (slices, many, inner), float16 too, or with FLOAT_ROWS float32, which is rounded; with OVERFLOW_NAN to NaN beyond float16's range. start: one int for every `shared_slices`, or with slots a pair of a start and the slot that takes these slices, result: (slices, size, inner), with rows of no whole words.
// One workgroup works on the state of its y, and strides over the words that the rows of all slices may touch, `each` of a slice; a word of two slices is the first one's.
// Source: none.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;

#include "state_buffers.glsl"
layout(push_constant) uniform Push {
#include "state_offsets.glsl"
#include "dynamic_update_slice_fp16_push.glsl"
};
#include "state_words.glsl"
#include "dynamic_update_slice_fp16.glsl"
