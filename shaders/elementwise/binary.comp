#version 450
// result[i] = OP(a[i], b[i]) with numpy broadcasting over RANK axes; OP is FUNCTION of include/binary.glsl, named by the variant.
// a, b: strided, stride 0 along broadcast axes; result: (lines, columns), contiguous. Axes are listed innermost first.
// One invocation goes along the innermost axis, four elements at a time where all operands allow (USE_VEC4), and from line to line.
// Source: none.
#extension GL_GOOGLE_include_directive : require
#ifdef WORDS_64
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#endif
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint RANK = 1;
layout(constant_id = 4) const uint USE_VEC4 = 0;
layout(constant_id = 5) const uint A_ALONG = 1; // stride 1 along the innermost axis, else 0
layout(constant_id = 6) const uint B_ALONG = 1;
#include "vec4.glsl"
#include "binary.glsl"

layout(set = 0, binding = 0) readonly buffer A { WORDS a[]; };
SINGLE_WORDS(0, readonly, a)
layout(set = 0, binding = 1) readonly buffer B { WORDS b[]; };
SINGLE_WORDS(1, readonly, b)
layout(set = 0, binding = 2) writeonly buffer Result { WORDS result[]; };
SINGLE_WORDS(2, writeonly, result)
layout(push_constant) uniform Push {
    uint a_offset;
    uint b_offset;
    uint result_offset;
    uint columns;
    uint lines;
    uint sizes[6];
    uint a_strides[8];
    uint b_strides[8];
};
#define STRIDES(axis) uvec2(a_strides[axis], b_strides[axis])
#define START uvec2(a_offset, b_offset)
#define PLACES uvec2
#include "line_start.glsl"

void main() {
    const uint vec4_count = USE_VEC4 != 0u ? columns / 4u : 0u;
    const uint run = run_of_group(vec4_count);
    const uint end = end_of_run(vec4_count, run);
    const uint rest = columns - 4u * vec4_count;
    const uint run_of_words = run_of_group(rest);
    const uint end_of_words = end_of_run(rest, run_of_words);
    FOR_EACH_LINE(line, lines) {
        const uvec2 at = start_of_line(line);
        const uint to = result_offset + line * columns;
        const uint to_vec4 = to / 4u;
        OPEN(left, a, at.x)
        OPEN(right, b, at.y)
        for (uint i = first_of_run(run); i < end; i += gl_WorkGroupSize.x) {
            const uvec4 l = LOAD_VEC4(left, a, A_ALONG, i);
            const uvec4 r = LOAD_VEC4(right, b, B_ALONG, i);
            result[to_vec4 + i] = stored(uvec4(
                FUNCTION(l.x, r.x), FUNCTION(l.y, r.y), FUNCTION(l.z, r.z), FUNCTION(l.w, r.w)));
        }
        for (uint i = first_of_run(run_of_words); i < end_of_words; i += gl_WorkGroupSize.x) {
            const uint column = 4u * vec4_count + i;
            const uvec2 from = at + column * STRIDES(0);
            WORD(result, to + column) = FUNCTION(WORD(a, from.x), WORD(b, from.y));
        }
    }
}
