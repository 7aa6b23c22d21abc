#version 450
// result[sum index * result_strides] = x[sum index * x_strides] over RANK axes: transpose, expand, slice, concat.
// x, result: strided, steps may be negative or 0 in x. Axes are listed innermost first.
// One group strides over the elements by the size of the whole dispatch.
// Source: none.
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint RANK = 1;

layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint result_offset;
    uint count;
    uint sizes[7];
    int x_strides[8];
    int result_strides[8];
};

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < count; i += stride) {
        uint rest = i;
        uint from = x_offset;
        uint to = result_offset;
        for (uint axis = 0u; axis + 1u < RANK; ++axis) {
            const uint next = rest / sizes[axis];
            const uint index = rest - next * sizes[axis];
            from += index * uint(x_strides[axis]);
            to += index * uint(result_strides[axis]);
            rest = next;
        }
        from += rest * uint(x_strides[RANK - 1u]);
        to += rest * uint(result_strides[RANK - 1u]);
        result[to] = x[from];
    }
}
