#version 450
// out[i] = OP(x[i]; alpha, beta) for i < count.
// x: (count) words, out: (count) words; OP is FUNCTION of include/unary.glsl, named by the variant.
// One group strides over the elements by the size of the whole dispatch.
// Source: none.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "unary.glsl"

layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint result_offset;
    uint count;
    uint alpha;
    uint beta;
};

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < count; i += stride) {
        result[result_offset + i] = FUNCTION(x[x_offset + i], alpha, beta);
    }
}
