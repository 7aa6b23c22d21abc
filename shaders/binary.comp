#version 450
// result[i] = OP(a[i], b[i]) with numpy broadcasting over RANK axes; OP is FUNCTION of include/binary.glsl, named by the variant.
// a, b: strided, stride 0 along broadcast axes; result: (count), contiguous. Axes are listed innermost first.
// One group strides over the elements by the size of the whole dispatch.
// Source: none.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint RANK = 1;
#include "binary.glsl"

layout(set = 0, binding = 0) readonly buffer A { uint a[]; };
layout(set = 0, binding = 1) readonly buffer B { uint b[]; };
layout(set = 0, binding = 2) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint a_offset;
    uint b_offset;
    uint result_offset;
    uint count;
    uint sizes[7];
    uint a_strides[8];
    uint b_strides[8];
};

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < count; i += stride) {
        uint rest = i;
        uint at_a = a_offset;
        uint at_b = b_offset;
        for (uint axis = 0u; axis + 1u < RANK; ++axis) {
            const uint next = rest / sizes[axis];
            const uint index = rest - next * sizes[axis];
            at_a += index * a_strides[axis];
            at_b += index * b_strides[axis];
            rest = next;
        }
        at_a += rest * a_strides[RANK - 1u];
        at_b += rest * b_strides[RANK - 1u];
        result[result_offset + i] = FUNCTION(a[at_a], b[at_b]);
    }
}
