#version 450
// result[i] = x reduced over the reduced axis at index i of the kept axes, as reduce.comp, whose second stage joins the parts.
// x: strided by kept axes, innermost first, four rows side by side, and by the reduced one; result: (rows), contiguous.
// One workgroup computes one part, columns part * chunk and on, of VEC4S_PER_INVOCATION vec4s of rows for each invocation: long pieces of memory.
// Source: Blelloch, Prefix sums and their applications, 1990 (reduction in two stages).
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#define WORDS_64
layout(local_size_x = 8, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint VEC4S_PER_INVOCATION = 1;
#include "reduce_state.glsl"
#include "load_words.glsl"
#include "reduce_parts.glsl"

void main() {
    const uint vec4_count = rows / 4u;
    const uint apart = stride / 4u;
    const uint each = VEC4S_PER_INVOCATION * gl_WorkGroupSize.x;
    const uint blocks = (vec4_count + each - 1u) / each;
    for (uint item = gl_WorkGroupID.x; item < blocks * parts; item += gl_NumWorkGroups.x) {
        const uint part = item / blocks;
        const uint first = (item - part * blocks) * each + gl_LocalInvocationIndex;
        const uint start = part * chunk;
        const uint end = min(start + chunk, columns);
        uint at[VEC4S_PER_INVOCATION];
        ROW_TYPE states[4u * VEC4S_PER_INVOCATION];
        for (uint w = 0u; w < VEC4S_PER_INVOCATION; ++w) {
            // where there are no more rows, the last ones again
            const uint vec4_index = min(first + w * gl_WorkGroupSize.x, vec4_count - 1u);
            at[w] = (x_offset + outer_word(4u * vec4_index)) / 4u + start * apart;
            for (uint k = 0u; k < 4u; ++k) states[4u * w + k] = NOTHING;
        }
        for (uint column = start; column < end; ++column) {
            for (uint w = 0u; w < VEC4S_PER_INVOCATION; ++w) {
                const uvec4 four = words(x[at[w]]);
                states[4u * w] = take(states[4u * w], four.x, column ^ option);
                states[4u * w + 1u] = take(states[4u * w + 1u], four.y, column ^ option);
                states[4u * w + 2u] = take(states[4u * w + 2u], four.z, column ^ option);
                states[4u * w + 3u] = take(states[4u * w + 3u], four.w, column ^ option);
                at[w] += apart;
            }
        }
        for (uint w = 0u; w < VEC4S_PER_INVOCATION; ++w) {
            const uint vec4_index = first + w * gl_WorkGroupSize.x;
            if (vec4_index < vec4_count) {
                for (uint k = 0u; k < 4u; ++k) store(states[4u * w + k], 4u * vec4_index + k, part);
            }
        }
    }
}
