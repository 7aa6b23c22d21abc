#version 450
// targets[r] = number of the slice that the tuple indices[r, 0..DEPTH - 1] names.
// indices: (count, DEPTH) ints, targets: (count), contiguous.
// One workgroup strides over the tuples by the size of the whole dispatch.
// Source: ONNX ScatterND. An index outside its axis sets bit 0 of the status word; the target is 2^32 - 1.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint DEPTH = 1;

layout(set = 0, binding = 0) readonly buffer Indices { int indices[]; };
layout(set = 0, binding = 1) writeonly buffer Targets { uint targets[]; };
layout(set = 0, binding = 2) buffer Status { uint status[]; };
layout(push_constant) uniform Push {
    uint indices_offset;
    uint targets_offset;
    uint status_offset;
    uint count;
    uint sizes[8];
};
#include "checked_tuple.glsl"

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < count; i += stride) {
        targets[targets_offset + i] = checked_tuple(indices_offset + i * DEPTH);
    }
}
