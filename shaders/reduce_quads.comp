#version 450
// result[i] = x reduced over the reduced axes at index i of the kept axes, as reduce.comp, whose second stage joins the parts.
// x: strided by kept axes, innermost first, and by one reduced axis; result: (rows), contiguous.
// One invocation computes one part, columns part * chunk and on, of one row, read in quads along it, or of four rows side by side (ACROSS).
// Source: Blelloch, Prefix sums and their applications, 1990 (reduction in two stages).
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint ACROSS = 0;
#include "reduce_state.glsl"
#include "quads.glsl"

layout(set = 0, binding = 0) readonly buffer X { uvec4 x[]; };
layout(set = 0, binding = 1) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint result_offset;
    uint rows;
    uint columns;
    uint parts;
    uint chunk;
    uint writes_states;
    uint option;
    float divisor;
    uint kept_sizes[3];
    uint kept_strides[4];
    uint stride;
};

uint kept_word(uint index) {
    uint at = 0u;
    for (uint axis = 0u; axis < 3u; ++axis) {
        const uint next = index / kept_sizes[axis];
        at += (index - next * kept_sizes[axis]) * kept_strides[axis];
        index = next;
    }
    return at + index * kept_strides[3];
}

// The part of a row, or its result.
void store(ROW_TYPE state, uint row, uint part) {
    if (writes_states != 0u) {
        const uvec4 words = to_words(state);
        for (uint word = 0u; word < STATE_WORDS; ++word) {
            result[result_offset + (word * parts + part) * rows + row] = words[word];
        }
    } else {
        result[result_offset + row] = finish(state, divisor, option);
    }
}

void main() {
    const uint side = ACROSS != 0u ? 4u : 1u;
    const uint items = rows / side;
    const uint step = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint item = gl_GlobalInvocationID.x; item < items * parts; item += step) {
        const uint part = item / items;
        const uint row = (item - part * items) * side;
        const uint start = part * chunk;
        const uint end = min(start + chunk, columns);
        const uint at = x_offset + kept_word(row);
        ROW_TYPE a = NOTHING;
        ROW_TYPE b = NOTHING;
        ROW_TYPE c = NOTHING;
        ROW_TYPE d = NOTHING;
        // quads between the first and the last multiple of four, or one for each column
        const uint head = ACROSS != 0u ? 0u : min(-(at + start) & 3u, end - start);
        const uint quads = ACROSS != 0u ? end - start : (end - start - head) / 4u;
        const uint first = ACROSS != 0u ? (at + start * stride) / 4u : (at + start + head) / 4u;
        const uint apart = ACROSS != 0u ? stride / 4u : 1u;
        const uint along = 4u - 3u * ACROSS; // columns of a quad
        const uint next = 1u - ACROSS;
        for (uint i = 0u; i < quads; ++i) {
            const uvec4 four = x[first + i * apart];
            const uint column = start + head + i * along;
            a = take(a, four.x, column ^ option);
            b = take(b, four.y, (column + next) ^ option);
            c = take(c, four.z, (column + 2u * next) ^ option);
            d = take(d, four.w, (column + 3u * next) ^ option);
        }
        const uint edges = ACROSS != 0u ? 0u : end - start - 4u * quads;
        for (uint i = 0u; i < edges; ++i) {
            const uint column = start + (i < head ? i : i + 4u * quads);
            a = take(a, WORD(x, at + column), column ^ option);
        }
        if (ACROSS != 0u) {
            store(a, row, part);
            store(b, row + 1u, part);
            store(c, row + 2u, part);
            store(d, row + 3u, part);
        } else {
            store(combine(combine(a, b), combine(c, d)), row, part);
        }
    }
}
