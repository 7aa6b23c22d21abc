#version 450
// result[i] = condition[i] ? a[i] : b[i] with numpy broadcasting over RANK axes.
// condition, a, b: strided, stride 0 along broadcast axes; result: (count), contiguous. Axes innermost first.
// One group strides over the elements by the size of the whole dispatch.
// Source: none.
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint RANK = 1;

layout(set = 0, binding = 0) readonly buffer Condition { uint condition[]; };
layout(set = 0, binding = 1) readonly buffer A { uint a[]; };
layout(set = 0, binding = 2) readonly buffer B { uint b[]; };
layout(set = 0, binding = 3) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint condition_offset;
    uint a_offset;
    uint b_offset;
    uint result_offset;
    uint count;
    uint sizes[6];
    uint condition_strides[7];
    uint a_strides[7];
    uint b_strides[7];
};

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < count; i += stride) {
        uint rest = i;
        uint at_condition = condition_offset;
        uint at_a = a_offset;
        uint at_b = b_offset;
        for (uint axis = 0u; axis < RANK; ++axis) {
            const bool last = axis + 1u == RANK;
            const uint next = last ? 0u : rest / sizes[min(axis, 5u)];
            const uint index = last ? rest : rest - next * sizes[min(axis, 5u)];
            at_condition += index * condition_strides[axis];
            at_a += index * a_strides[axis];
            at_b += index * b_strides[axis];
            rest = next;
        }
        const uint value = condition[at_condition] != 0u ? a[at_a] : b[at_b];
        result[result_offset + i] = value;
    }
}
