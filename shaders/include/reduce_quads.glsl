// What reduce_quads and reduce_quads_64 share: they differ in the words that they load.
#include "reduce_state.glsl"
#include "fours.glsl"
#include "reduce_parts.glsl"

// One state for all four: what a loop carries costs SwiftShader more than sums that wait for each other.
ROW_TYPE take_quad(ROW_TYPE state, uvec4 four, uint column) {
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
        const uint at = x_offset + kept_word(row);
        // quads between the first and the last multiple of four
        const uint head = min(-(at + start) & 3u, end - start);
        const uint quads = (end - start - head) / 4u;
        const uint first = (at + start + head) / 4u;
        ROW_TYPE state = NOTHING;
        for (uint i = 0u; i + 1u < quads; i += 2u) {
            const uvec4 four = words(x[first + i]);
            const uvec4 next = words(x[first + i + 1u]);
            const uint column = start + head + 4u * i;
            state = take_quad(state, four, column);
            state = take_quad(state, next, column + 4u);
        }
        const uint last = quads & ~1u;
        if (last < quads) state = take_quad(state, words(x[first + last]), start + head + 4u * last);
        const uint edges = end - start - 4u * quads;
        for (uint i = 0u; i < edges; ++i) {
            const uint column = start + (i < head ? i : i + 4u * quads);
            state = take(state, words(x[(at + column) >> 2u])[(at + column) & 3u], column ^ option);
        }
        store(state, row, part);
    }
}
