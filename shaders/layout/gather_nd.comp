#version 450
// result[r, i] = table[batch of r, indices[r, 0], ..., indices[r, DEPTH - 1], i]; negative indices count from the end.
// table: (batches, *sizes, inner), indices: (rows, DEPTH) ints, result: (rows, inner), contiguous; batch = r / batch_rows.
// One workgroup strides over the elements by the size of the whole dispatch.
// Source: ONNX GatherND. An index outside its axis sets bit 0 of the status word and writes all bits of a NaN.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint DEPTH = 1;

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
    uint inner;
    uint batch_rows;
    uint batch_slices;
    uint sizes[8];
};
#include "checked_tuple.glsl"

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < count; i += stride) {
        const uint row = i / inner;
        const uint slice = checked_tuple(indices_offset + row * DEPTH);
        if (slice == OUT_OF_RANGE) {
            result[result_offset + i] = NAN_WORD;
        } else {
            const uint from = (row / batch_rows * batch_slices + slice) * inner + (i - row * inner);
            result[result_offset + i] = table[table_offset + from];
        }
    }
}
