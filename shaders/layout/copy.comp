#version 450
// dst[i] = src[i] for i < count, as 32-bit words whatever they hold.
// src: (count), dst: (count); uploads, downloads and copies between windows and pages.
// One workgroup copies a run of neighbouring words, four at a time where both start at a multiple of four (vec4.glsl).
// Source: none.
#extension GL_GOOGLE_include_directive : require
#ifdef WORDS_64
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#endif
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "vec4.glsl"

layout(set = 0, binding = 0) readonly buffer Src { WORDS src[]; };
SINGLE_WORDS(0, readonly, src)
layout(set = 0, binding = 1) writeonly buffer Dst { WORDS dst[]; };
SINGLE_WORDS(1, writeonly, dst)
layout(push_constant) uniform Push {
    uint src_offset;
    uint dst_offset;
    uint count;
};

void main() {
    const uint vec4_count = ((src_offset | dst_offset) & 3u) == 0u ? count / 4u : 0u;
    const uint run = run_of_group(vec4_count);
    const uint end = end_of_run(vec4_count, run);
    const uint from = src_offset / 4u;
    const uint to = dst_offset / 4u;
    for (uint i = first_of_run(run); i < end; i += gl_WorkGroupSize.x) dst[to + i] = src[from + i];
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = 4u * vec4_count + gl_GlobalInvocationID.x; i < count; i += stride) {
        WORD(dst, dst_offset + i) = WORD(src, src_offset + i);
    }
}
