#version 450
// plan[i] = expert_ids[i], the number of a matrix, as a float: what products by numbered matrices read (matmul.glsl), a row each.
// expert_ids: (count) ints, plan: (count) floats, status: error bits. One invocation takes one number, or more.
// Source: none. A number outside 0..matrices-1, or -matrices..-1 from the end, sets bit 0 of the status word.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;

layout(set = 0, binding = 0) readonly buffer ExpertIds { int expert_ids[]; };
layout(set = 0, binding = 1) writeonly buffer Plan { float plan[]; };
layout(set = 0, binding = 2) buffer Status { uint status[]; };
layout(push_constant) uniform Push {
    uint expert_ids_offset;
    uint plan_offset;
    uint status_offset;
    uint count;
    uint matrices;
};
#include "checked_index.glsl"

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < count; i += stride) {
        const uint number = checked_index(expert_ids[expert_ids_offset + i], matrices);
        plan[plan_offset + i] = number == OUT_OF_RANGE ? -1.0 : float(number);
    }
}
