#version 450
// dst[i] = src[i] for i < count, as values of type T: the device's memory and nothing else.
// src: (count), dst: (count); `vksched bench` holds the bytes per second of kernels against this one.
// One workgroup copies a run of neighbouring values.
// Source: none.
#extension GL_GOOGLE_include_directive : require
#ifdef WORDS_64
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#endif
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "vec4.glsl"

layout(set = 0, binding = 0) readonly buffer Src { T src[]; };
layout(set = 0, binding = 1) writeonly buffer Dst { T dst[]; };
layout(push_constant) uniform Push {
    uint src_offset;
    uint dst_offset;
    uint count;
};

void main() {
    const uint run = run_of_group(count);
    const uint end = end_of_run(count, run);
    for (uint i = first_of_run(run); i < end; i += gl_WorkGroupSize.x) {
        dst[dst_offset + i] = src[src_offset + i];
    }
}
