#version 450
// result[o, j, i] = table[o, indices[j], i] for o < outer, j < picks, i < inner; negative indices count from the end.
// table: (outer, axis_size, inner), indices: (picks) ints, result: (outer, picks, inner), status: error bits.
// One invocation goes along inner, four elements at a time where it is a multiple of four (USE_VEC4), and from index to index.
// Source: ONNX Gather. An index outside the axis sets bit 0 of the status word and writes all bits of a NaN.
#extension GL_GOOGLE_include_directive : require
#ifdef WORDS_64
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#endif
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint USE_VEC4 = 0;
#include "vec4.glsl"

layout(set = 0, binding = 0) readonly buffer Table { WORDS table[]; };
SINGLE_WORDS(0, readonly, table)
layout(set = 0, binding = 1) readonly buffer Indices { int indices[]; };
layout(set = 0, binding = 2) writeonly buffer Result { WORDS result[]; };
SINGLE_WORDS(2, writeonly, result)
layout(set = 0, binding = 3) buffer Status { uint status[]; };
layout(push_constant) uniform Push {
    uint table_offset;
    uint indices_offset;
    uint result_offset;
    uint status_offset;
    uint lines;
    uint axis_size;
    uint picks;
    uint inner;
};
#include "checked_index.glsl"

void main() {
    const uint vec4_count = USE_VEC4 != 0u ? inner / 4u : 0u;
    const uint run = run_of_group(vec4_count);
    const uint end = end_of_run(vec4_count, run);
    const uint rest = inner - 4u * vec4_count;
    const uint run_of_words = run_of_group(rest);
    const uint end_of_words = end_of_run(rest, run_of_words);
    FOR_EACH_LINE(line, lines) {
        const uint outer = line / picks;
        const uint index = checked_index(indices[indices_offset + (line - outer * picks)], axis_size);
        const bool missing = index == OUT_OF_RANGE;
        const uint from = table_offset + (outer * axis_size + (missing ? 0u : index)) * inner;
        const uint to = result_offset + line * inner;
        const uint from_vec4 = from / 4u;
        const uint to_vec4 = to / 4u;
        for (uint i = first_of_run(run); i < end; i += gl_WorkGroupSize.x) {
            result[to_vec4 + i] = stored(mix(words(table[from_vec4 + i]), uvec4(NAN_WORD), bvec4(missing)));
        }
        for (uint i = first_of_run(run_of_words); i < end_of_words; i += gl_WorkGroupSize.x) {
            const uint column = 4u * vec4_count + i;
            WORD(result, to + column) = missing ? NAN_WORD : WORD(table, from + column);
        }
    }
}
