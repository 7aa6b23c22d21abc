#version 450
// result[p with indices[p] at the axis] = OP(itself, updates[p]) for every position p of indices, in order along the axis.
// indices, updates: contiguous, of one shape; result: strided by the RANK other axes of indices, innermost first.
// One invocation takes lines along the axis, one after the other: positions start..end of each, so the last update stays.
// Source: ONNX ScatterElements. An index outside the axis sets bit 0 of the status word and is left out.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint RANK = 1;
layout(constant_id = 4) const uint OP = 0;

layout(set = 0, binding = 0) readonly buffer Indices { int indices[]; };
layout(set = 0, binding = 1) readonly buffer Updates { uint updates[]; };
layout(set = 0, binding = 2) buffer Result { uint result[]; };
layout(set = 0, binding = 3) buffer Status { uint status[]; };
layout(push_constant) uniform Push {
    uint indices_offset;
    uint updates_offset;
    uint result_offset;
    uint status_offset;
    uint lines;
    uint start;
    uint end;
    uint axis_size;
    uint axis_stride;
    uint step;
    uint sizes[6];
    uint result_strides[7];
    uint line_strides[7];
};
#include "checked_index.glsl"
#include "scatter.glsl"

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint line = gl_GlobalInvocationID.x; line < lines; line += stride) {
        uint rest = line;
        uint to = result_offset;
        uint from = start * step;
        for (uint axis = 0u; axis + 1u < RANK; ++axis) {
            const uint next = rest / sizes[axis];
            to += (rest - next * sizes[axis]) * result_strides[axis];
            from += (rest - next * sizes[axis]) * line_strides[axis];
            rest = next;
        }
        to += rest * result_strides[RANK - 1u];
        from += rest * line_strides[RANK - 1u];
        for (uint position = start; position < end; ++position) {
            const uint index = checked_index(indices[indices_offset + from], axis_size);
            if (index != OUT_OF_RANGE) {
                const uint at = to + index * axis_stride;
                result[at] = combine(result[at], updates[updates_offset + from]);
            }
            from += step;
        }
    }
}
