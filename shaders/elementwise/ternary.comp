#version 450
// result[i] = OP(x[i], a[i], b[i]) with numpy broadcasting over RANK axes: where(x, a, b) or x + scale * a * b.
// x, a, b: strided, stride 0 along broadcast axes; result: (lines, columns), contiguous. Axes are listed innermost first.
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
layout(constant_id = 5) const uint X_ALONG = 1; // stride 1 along the innermost axis, else 0
layout(constant_id = 6) const uint A_ALONG = 1;
layout(constant_id = 7) const uint B_ALONG = 1;
#include "vec4.glsl"

layout(set = 0, binding = 0) readonly buffer X { WORDS x[]; };
SINGLE_WORDS(0, readonly, x)
layout(set = 0, binding = 1) readonly buffer A { WORDS a[]; };
SINGLE_WORDS(1, readonly, a)
layout(set = 0, binding = 2) readonly buffer B { WORDS b[]; };
SINGLE_WORDS(2, readonly, b)
layout(set = 0, binding = 3) writeonly buffer Result { WORDS result[]; };
SINGLE_WORDS(3, writeonly, result)
layout(push_constant) uniform Push {
    uint x_offset;
    uint a_offset;
    uint b_offset;
    uint result_offset;
    uint columns;
    uint lines;
    float scale;
    uint sizes[4];
    uint x_strides[6];
    uint a_strides[6];
    uint b_strides[6];
};
#define STRIDES(axis) uvec3(x_strides[axis], a_strides[axis], b_strides[axis])
#define START uvec3(x_offset, a_offset, b_offset)
#define PLACES uvec3
#include "line_start.glsl"

uint apply_ternary(uint x_word, uint a_word, uint b_word) {
#if defined(WHERE)
    return x_word != 0u ? a_word : b_word;
#elif defined(ADDCMUL_FLOAT32)
    return floatBitsToUint(uintBitsToFloat(x_word) + scale * uintBitsToFloat(a_word) * uintBitsToFloat(b_word));
#endif
}

void main() {
    const uint vec4_count = USE_VEC4 != 0u ? columns / 4u : 0u;
    const uint run = run_of_group(vec4_count);
    const uint end = end_of_run(vec4_count, run);
    const uint rest = columns - 4u * vec4_count;
    const uint run_of_words = run_of_group(rest);
    const uint end_of_words = end_of_run(rest, run_of_words);
    FOR_EACH_LINE(line, lines) {
        const uvec3 at = start_of_line(line);
        const uint to = result_offset + line * columns;
        const uint to_vec4 = to / 4u;
        OPEN(first, x, at.x)
        OPEN(left, a, at.y)
        OPEN(right, b, at.z)
        for (uint i = first_of_run(run); i < end; i += gl_WorkGroupSize.x) {
            const uvec4 f = LOAD_VEC4(first, x, X_ALONG, i);
            const uvec4 l = LOAD_VEC4(left, a, A_ALONG, i);
            const uvec4 r = LOAD_VEC4(right, b, B_ALONG, i);
            result[to_vec4 + i] = stored(uvec4(apply_ternary(f.x, l.x, r.x), apply_ternary(f.y, l.y, r.y),
                apply_ternary(f.z, l.z, r.z), apply_ternary(f.w, l.w, r.w)));
        }
        for (uint i = first_of_run(run_of_words); i < end_of_words; i += gl_WorkGroupSize.x) {
            const uint column = 4u * vec4_count + i;
            const uvec3 from = at + column * STRIDES(0);
            WORD(result, to + column) =
                apply_ternary(WORD(x, from.x), WORD(a, from.y), WORD(b, from.z));
        }
    }
}
