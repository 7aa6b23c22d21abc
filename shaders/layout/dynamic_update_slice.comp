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
    uint count;
    uint inner;
    uint many;
    uint size;
    uint shared_slices;
    uint slots; // 0: slices stay where they are
};
#include "slots.glsl"

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < count; i += stride) {
        const uint slice = i / (many * inner);
        const uint row = uint(start_of(slice)) + i / inner % many; // below 0 it is large
        const uint target = target_slice(slice);
        if (row < size && target != NOWHERE)
            result[result_offset + (target * size + row) * inner + i % inner] = rows[rows_offset + i];
    }
}
