#version 450
// result[i] = x reduced over the reduced axis at index i of the kept axes, as reduce.comp, whose second stage joins the parts.
// x: strided by kept axes, innermost first, and contiguous along the reduced one; result: (rows), contiguous.
// One invocation computes one part, columns part * chunk and on, of one row, two vec4s at a time.
// Source: Blelloch, Prefix sums and their applications, 1990 (reduction in two stages).
#extension GL_GOOGLE_include_directive : require
#ifdef WORDS_64
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#endif
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "reduce_state.glsl"
#include "load_words.glsl"
#include "reduce_parts.glsl"

// One state for all four: what a loop carries costs SwiftShader more than sums that wait for each other.
ROW_TYPE take_vec4(ROW_TYPE state, uvec4 four, uint column) {
    state = take(state, four.x, column ^ option);
    state = take(state, four.y, (column + 1u) ^ option);
    state = take(state, four.z, (column + 2u) ^ option);
    return take(state, four.w, (column + 3u) ^ option);
}

void main() {
    const uint step = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint item = gl_GlobalInvocationID.x; item < rows * parts; item += step) {
        const uint part = item / rows;
        const uint row = item - part * rows;
        const uint start = part * chunk;
        const uint end = min(start + chunk, columns);
        const uint at = x_offset + outer_word(row);
        // vec4s between the first and the last multiple of four
        const uint head = min(-(at + start) & 3u, end - start);
        const uint vec4_count = (end - start - head) / 4u;
        const uint first = (at + start + head) / 4u;
        ROW_TYPE state = NOTHING;
        for (uint i = 0u; i + 1u < vec4_count; i += 2u) {
            const uvec4 four = words(x[first + i]);
            const uvec4 next = words(x[first + i + 1u]);
            const uint column = start + head + 4u * i;
            state = take_vec4(state, four, column);
            state = take_vec4(state, next, column + 4u);
        }
        const uint last = vec4_count & ~1u;
        if (last < vec4_count) state = take_vec4(state, words(x[first + last]), start + head + 4u * last);
        const uint edges = end - start - 4u * vec4_count;
        for (uint i = 0u; i < edges; ++i) {
            const uint column = start + (i < head ? i : i + 4u * vec4_count);
            state = take(state, WORD(x, at + column), column ^ option);
        }
        store(state, row, part);
    }
}
