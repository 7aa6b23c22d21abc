#version 450
#extension GL_GOOGLE_include_directive : require
// Of up to 11 states and their rows: result[slice, start + r, c] = rows[slice, r, c] where 0 <= start + r < size; all else of the result stays as it is.
// rows: (count / (many * inner), many, inner) words, start: one int for every `shared_slices`, or with slots a pair of a start and the slot that takes these slices, result: (slices, size, inner).
// One workgroup works on the state of its y, and strides over the words of rows by the size of the whole dispatch.
// Source: none.
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;

#include "state_buffers.glsl"
layout(push_constant) uniform Push {
#include "state_offsets.glsl"
#include "dynamic_update_slice_push.glsl"
};
#include "state_words.glsl"
#include "dynamic_update_slice.glsl"
