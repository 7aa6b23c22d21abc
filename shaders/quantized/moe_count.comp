#version 450
// plan[g] = how many of expert_ids are the number g: the rows of each group.
// expert_ids: (count) ints, negative ones count from the end, plan: (matrices) uints. One invocation counts for one number, or more.
// Source: none.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;

layout(set = 0, binding = 0) readonly buffer ExpertIds { int expert_ids[]; };
layout(set = 0, binding = 1) writeonly buffer Plan { uint plan[]; };
layout(push_constant) uniform Push {
    uint expert_ids_offset;
    uint plan_offset;
    uint count;
    uint matrices;
};

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint group = gl_GlobalInvocationID.x; group < matrices; group += stride) {
        uint found = 0u;
        for (uint i = 0u; i < count; ++i) {
            const int number = expert_ids[expert_ids_offset + i];
            found += uint(number == int(group) || number == int(group) - int(matrices));
        }
        plan[plan_offset + group] = found;
    }
}
