#version 450
// result[i] = what CHAINS sums s = s * scale + shift are after `rounds` rounds: the device's arithmetic and nothing else.
// result: (one value per invocation); `vksched bench` holds the rates of kernels against this one.
// One invocation keeps CHAINS values of type T in registers; they depend on nothing but themselves.
// Source: none.
#extension GL_GOOGLE_include_directive : require
#include "ceiling.glsl"
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;

layout(set = 0, binding = 0) writeonly buffer Result { float result[]; };
layout(push_constant) uniform Push {
    uint result_offset;
    uint rounds;
    float scale;
    float shift;
};

void main() {
    const T m = T(scale), c = T(shift);
    T s0 = T(gl_LocalInvocationID.x), s1 = s0 + T(1.0);
#if CHAINS > 2
    T s2 = s0 + T(2.0), s3 = s0 + T(3.0);
#endif
#if CHAINS > 4
    T s4 = s0 + T(4.0), s5 = s0 + T(5.0), s6 = s0 + T(6.0), s7 = s0 + T(7.0);
#endif
    for (uint i = 0u; i < rounds; ++i) {
        ROUND ROUND ROUND ROUND
    }
    s0 += s1;
#if CHAINS > 2
    s0 += s2 + s3;
#endif
#if CHAINS > 4
    s0 += s4 + s5 + s6 + s7;
#endif
    result[result_offset + gl_GlobalInvocationID.x] = dot(vec4(s0), vec4(1.0));
}
