#version 450
#extension GL_GOOGLE_include_directive : require
// result[slice, start + r, c] = rows[slice, r, c] where 0 <= start + r < size; all else of the result stays as it is.
// rows: (count / (many * inner), many, inner) words, start: one int for every `shared_slices`, or with slots a pair of a start and the slot that takes these slices, result: (slices, size, inner).
// One workgroup strides over the words of rows by the size of the whole dispatch.
// Source: none.
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;

layout(set = 0, binding = 0) readonly buffer Rows { uint rows[]; };
layout(set = 0, binding = 1) readonly buffer Start { int start[]; };
layout(set = 0, binding = 2) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint rows_offset;
    uint start_offset;
    uint result_offset;
#include "dynamic_update_slice_push.glsl"
};
uint row_word(uint i) { return rows[rows_offset + i]; }
void write_word(uint i, uint word) { result[result_offset + i] = word; }
#include "dynamic_update_slice.glsl"
