#version 450
// targets[p] = word of the element that update p is for: p with indices[p] at the axis.
// indices, targets: (count), contiguous; the elements: strided by RANK axes of indices, innermost first, 0 at the axis.
// One workgroup strides over the updates by the size of the whole dispatch.
// Source: ONNX ScatterElements. An index outside the axis sets bit 0 of the status word; its target is 2^32 - 1.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint RANK = 1;

layout(set = 0, binding = 0) readonly buffer Indices { int indices[]; };
layout(set = 0, binding = 1) writeonly buffer Targets { uint targets[]; };
layout(set = 0, binding = 2) buffer Status { uint status[]; };
layout(push_constant) uniform Push {
    uint indices_offset;
    uint targets_offset;
    uint status_offset;
    uint count;
    uint axis_size;
    uint axis_stride;
    uint sizes[7];
    uint strides[8];
};
#include "checked_index.glsl"

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < count; i += stride) {
        uint rest = i;
        uint to = 0u;
        for (uint axis = 0u; axis + 1u < RANK; ++axis) {
            const uint next = rest / sizes[axis];
            to += (rest - next * sizes[axis]) * strides[axis];
            rest = next;
        }
        to += rest * strides[RANK - 1u];
        const uint index = checked_index(indices[indices_offset + i], axis_size);
        targets[targets_offset + i] = index == OUT_OF_RANGE ? OUT_OF_RANGE : to + index * axis_stride;
    }
}
