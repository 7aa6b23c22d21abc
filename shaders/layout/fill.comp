#version 450
// result[i] = value for i < count, a 32-bit word whatever it holds.
// result: (count).
// One workgroup takes a run of neighbouring words, four at a time (vec4.glsl).
// Source: none.
#extension GL_GOOGLE_include_directive : require
#ifdef WORDS_64
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#endif
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "vec4.glsl"

layout(set = 0, binding = 0) writeonly buffer Result { WORDS result[]; };
SINGLE_WORDS(0, writeonly, result)
layout(push_constant) uniform Push {
    uint result_offset;
    uint count;
    uint value;
};

void main() {
    const uint vec4_count = count / 4u;
    const uint run = run_of_group(vec4_count);
    const uint end = end_of_run(vec4_count, run);
    const uint to = result_offset / 4u;
    for (uint i = first_of_run(run); i < end; i += gl_WorkGroupSize.x) result[to + i] = stored(uvec4(value));
    const uint last = 4u * vec4_count + gl_GlobalInvocationID.x;
    if (last < count) WORD(result, result_offset + last) = value;
}
