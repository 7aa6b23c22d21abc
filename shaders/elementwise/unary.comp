#version 450
// out[i] = OP(x[i]; alpha, beta) for i < count.
// x: (count) words, out: (count) words; OP is FUNCTION of include/unary.glsl, named by the variant.
// One workgroup computes a run of neighbouring elements, four at a time (vec4.glsl).
// Source: none.
#extension GL_GOOGLE_include_directive : require
#ifdef WORDS_64
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#endif
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "vec4.glsl"
#include "unary.glsl"

layout(set = 0, binding = 0) readonly buffer X { WORDS x[]; };
SINGLE_WORDS(0, readonly, x)
layout(set = 0, binding = 1) writeonly buffer Result { WORDS result[]; };
SINGLE_WORDS(1, writeonly, result)
layout(push_constant) uniform Push {
    uint x_offset;
    uint result_offset;
    uint count;
    uint alpha;
    uint beta;
};

uint apply(uint word) { return FUNCTION(word, alpha, beta); }

void main() {
    const uint vec4_count = count / 4u;
    const uint run = run_of_group(vec4_count);
    const uint end = end_of_run(vec4_count, run);
    const uint from = x_offset / 4u;
    const uint to = result_offset / 4u;
    for (uint i = first_of_run(run); i < end; i += gl_WorkGroupSize.x) {
        const uvec4 four = words(x[from + i]);
        result[to + i] = stored(uvec4(apply(four.x), apply(four.y), apply(four.z), apply(four.w)));
    }
    const uint last = 4u * vec4_count + gl_GlobalInvocationID.x;
    if (last < count) WORD(result, result_offset + last) = apply(WORD(x, x_offset + last));
}
