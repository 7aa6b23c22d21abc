#version 450
// result[i] = x reduced over the reduced axis at index i of the kept axes, as reduce.comp, whose second stage joins the parts.
// x: strided by kept axes, innermost first, four rows side by side, and by the reduced one; result: (rows), contiguous.
// One invocation computes one part, columns part * chunk and on, of four rows, whose values at a column are a vec4.
// Source: Blelloch, Prefix sums and their applications, 1990 (reduction in two stages).
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "reduce_state.glsl"
#include "load_words.glsl"
#include "reduce_parts.glsl"

void main() {
    const uint items = rows / 4u;
    const uint apart = stride / 4u;
    const uint step = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint item = gl_GlobalInvocationID.x; item < items * parts; item += step) {
        const uint part = item / items;
        const uint row = (item - part * items) * 4u;
        const uint start = part * chunk;
        const uint end = min(start + chunk, columns);
        const uint at = (x_offset + outer_word(row)) / 4u;
        ROW_TYPE a = NOTHING;
        ROW_TYPE b = NOTHING;
        ROW_TYPE c = NOTHING;
        ROW_TYPE d = NOTHING;
        uint column = start;
#ifdef FLOAT_SUM
        // two columns at a time, as SwiftShader pays for what a loop carries; for others it is no gain
        for (; column + 1u < end; column += 2u) {
            const uvec4 four = x[at + column * apart];
            const uvec4 next = x[at + column * apart + apart];
            a = take(take(a, four.x, column), next.x, column + 1u);
            b = take(take(b, four.y, column), next.y, column + 1u);
            c = take(take(c, four.z, column), next.z, column + 1u);
            d = take(take(d, four.w, column), next.w, column + 1u);
        }
#endif
        for (; column < end; ++column) {
            const uvec4 four = x[at + column * apart];
            a = take(a, four.x, column ^ option);
            b = take(b, four.y, column ^ option);
            c = take(c, four.z, column ^ option);
            d = take(d, four.w, column ^ option);
        }
        store(a, row, part);
        store(b, row + 1u, part);
        store(c, row + 2u, part);
        store(d, row + 3u, part);
    }
}
