#version 450
// result[o, j, i] = table[o, indices[j], i] for o < outer, j < picks, i < inner; negative indices count from the end.
// table: (outer, axis_size, inner), indices: (picks) ints, result: (outer, picks, inner), status: error bits.
// One group strides over the elements by the size of the whole dispatch.
// Source: ONNX Gather. An index outside the axis sets bit 0 of the status word and writes all bits of a NaN.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;

layout(set = 0, binding = 0) readonly buffer Table { uint table[]; };
layout(set = 0, binding = 1) readonly buffer Indices { int indices[]; };
layout(set = 0, binding = 2) writeonly buffer Result { uint result[]; };
layout(set = 0, binding = 3) buffer Status { uint status[]; };
layout(push_constant) uniform Push {
    uint table_offset;
    uint indices_offset;
    uint result_offset;
    uint status_offset;
    uint count;
    uint axis_size;
    uint picks;
    uint inner;
};
#include "checked_index.glsl"

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < count; i += stride) {
        const uint row = i / inner;
        const uint outer = row / picks;
        const uint index = checked_index(indices[indices_offset + (row - outer * picks)], axis_size);
        if (index == OUT_OF_RANGE) {
            result[result_offset + i] = NAN_WORD;
        } else {
            const uint from = (outer * axis_size + index) * inner + (i - row * inner);
            result[result_offset + i] = table[table_offset + from];
        }
    }
}
