#version 450
// result[sum index * result_strides] = x[sum index * x_strides] over RANK axes: expand, slice, concat, transpose (not of the last axis).
// x, result: strided, steps may be negative or 0 in x. Axes are listed innermost first, of `columns` and `sizes` elements.
// One invocation goes along the innermost axis, four elements at a time where both sides allow (USE_VEC4), and from line to line.
// Source: none.
#extension GL_GOOGLE_include_directive : require
#ifdef WORDS_64
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#endif
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint RANK = 1;
layout(constant_id = 4) const uint USE_VEC4 = 0;
layout(constant_id = 5) const uint X_ALONG = 1; // stride 1 along the innermost axis, else 0
#include "vec4.glsl"

layout(set = 0, binding = 0) readonly buffer X { WORDS x[]; };
SINGLE_WORDS(0, readonly, x)
layout(set = 0, binding = 1) writeonly buffer Result { WORDS result[]; };
SINGLE_WORDS(1, writeonly, result)
layout(push_constant) uniform Push {
    uint x_offset;
    uint result_offset;
    uint columns;
    uint lines;
    uint sizes[6];
    int x_strides[8];
    int result_strides[8];
};
#define STRIDES(axis) uvec2(x_strides[axis], result_strides[axis])
#define START uvec2(x_offset, result_offset)
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
        const uint to_vec4 = at.y / 4u;
        OPEN(from, x, at.x)
        for (uint i = first_of_run(run); i < end; i += gl_WorkGroupSize.x) {
            result[to_vec4 + i] = stored(LOAD_VEC4(from, x, X_ALONG, i));
        }
        for (uint i = first_of_run(run_of_words); i < end_of_words; i += gl_WorkGroupSize.x) {
            const uvec2 place = at + (4u * vec4_count + i) * STRIDES(0);
            WORD(result, place.y) = WORD(x, place.x);
        }
    }
}
