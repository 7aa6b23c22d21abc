#version 450
// result[i] = x reduced over the reduced axes at index i of the kept axes: its sum, its largest value, ..., one per variant.
// x: strided by kept and by reduced axes, innermost first; result: (rows), contiguous.
// One group or one invocation computes one part of one row (rows.glsl): columns part * chunk and on. Several parts of a row
// end as states (words, parts, rows), which a second dispatch reads as x and reduces to the result.
// Source: Blelloch, Prefix sums and their applications, 1990 (reduction in two stages).
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "reduce_state.glsl"
#include "rows.glsl"
DEFINE_ROW_TREE(combine_lanes, combine)

layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint result_offset;
    uint rows;
    uint columns;
    uint parts;
    uint chunk;
    uint reads_states;
    uint writes_states;
    uint option;
    float divisor;
    uint outer_sizes[3];
    uint outer_strides[4];
    uint reduced_sizes[3];
    uint reduced_strides[4];
};

uint outer_word(uint index) {
    uint at = 0u;
    for (uint axis = 0u; axis < 3u; ++axis) {
        const uint next = index / outer_sizes[axis];
        at += (index - next * outer_sizes[axis]) * outer_strides[axis];
        index = next;
    }
    return at + index * outer_strides[3];
}

uint reduced_word(uint index) {
    if (reduced_sizes[0] == columns) return index * reduced_strides[0]; // one axis, as mostly
    uint at = 0u;
    for (uint axis = 0u; axis < 3u; ++axis) {
        const uint next = index / reduced_sizes[axis];
        at += (index - next * reduced_sizes[axis]) * reduced_strides[axis];
        index = next;
    }
    return at + index * reduced_strides[3];
}

ROW_TYPE read_state(uint at) {
    uvec4 words = uvec4(0u);
    for (uint word = 0u; word < STATE_WORDS; ++word) words[word] = x[at + word * columns * rows];
    return from_words(words);
}

void main() {
    for (uint item = first_row(); item < rows * parts; item += row_stride()) {
        const uint part = item / rows;
        const uint row = item - part * rows;
        const uint start = part * chunk;
        const uint end = min(start + chunk, columns);
        ROW_TYPE state = NOTHING;
        if (reads_states != 0u) {
            for (uint column = start + first_column(); column < end; column += column_stride()) {
                state = combine(state, read_state(x_offset + column * rows + row));
            }
        } else {
            const uint at = x_offset + outer_word(row);
            for (uint column = start + first_column(); column < end; column += column_stride()) {
                state = take(state, x[at + reduced_word(column)], column ^ option);
            }
        }
        state = combine_lanes(state);
        if (first_column() == 0u) {
            if (writes_states != 0u) {
                const uvec4 words = to_words(state);
                for (uint word = 0u; word < STATE_WORDS; ++word) {
                    result[result_offset + word * parts * rows + item] = words[word];
                }
            } else {
                result[result_offset + item] = finish(state, divisor, option);
            }
        }
    }
}
