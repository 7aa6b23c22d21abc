#version 450
// result[c] = x[0] + ... + x[c] along an axis, or the product; exclusive: without x[c]; backwards: from the end.
// x, result: (rows / inner, columns, inner), contiguous; a row has one outer and one inner index.
// One group or one invocation scans one part of one row (rows.glsl): columns part * chunk and on. With several parts their
// totals come first, as states (words, parts, rows); these are scanned to what stands before each part, its carry.
// Source: Blelloch, Prefix sums and their applications, 1990; Hillis and Steele, Data parallel algorithms, 1986.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "reduce_state.glsl"
#include "rows.glsl"
const uint ITEMS = 4u; // columns of a lane in each round of a whole group
const uint WORDS = 0u, STATES = 1u; // what is written; else only the total of each part

layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1) readonly buffer Carry { uint carry[]; };
layout(set = 0, binding = 2) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint carry_offset;
    uint result_offset;
    uint rows;
    uint columns;
    uint inner;
    uint parts;
    uint chunk;
    uint exclusive;
    uint backwards;
    uint has_carry;
    uint reads_states;
    uint writes;
};

uint word_of(uint row, uint column) {
    const uint place = backwards != 0u ? columns - 1u - column : column;
    return row / inner * columns * inner + row % inner + place * inner;
}

ROW_TYPE read(uint row, uint column) {
    if (reads_states == 0u) return take(NOTHING, x[x_offset + word_of(row, column)], 0u);
    uvec4 words = uvec4(0u);
    for (uint word = 0u; word < STATE_WORDS; ++word) words[word] = x[x_offset + (word * columns + column) * rows + row];
    return from_words(words);
}

ROW_TYPE read_carry(uint item) {
    if (has_carry == 0u) return NOTHING;
    uvec4 words = uvec4(0u);
    for (uint word = 0u; word < STATE_WORDS; ++word) words[word] = carry[carry_offset + word * rows * parts + item];
    return from_words(words);
}

void write_state(ROW_TYPE state, uint index, uint count) {
    const uvec4 words = to_words(state);
    for (uint word = 0u; word < STATE_WORDS; ++word) result[result_offset + word * count + index] = words[word];
}

void write(ROW_TYPE before, ROW_TYPE after, uint row, uint column) {
    if (writes == WORDS) {
        result[result_offset + word_of(row, column)] = exclusive != 0u ? finish(before, 1.0, 0u) : finish(after, 1.0, 0u);
    } else if (writes == STATES) {
        write_state(before, column * rows + row, columns * rows);
    }
}

void scan_alone(inout ROW_TYPE state, uint row, uint start, uint end) {
    for (uint column = start; column < end; ++column) {
        const ROW_TYPE after = combine(state, read(row, column));
        write(state, after, row, column);
        state = after;
    }
}

// The state of the lanes before this one; all: the state of all lanes. All lanes of a group must call it.
ROW_TYPE scan_lanes(ROW_TYPE value, out ROW_TYPE all) {
    const uint lane = gl_LocalInvocationIndex;
    barrier(); // the result before has been read
    row_scratch[lane] = value;
    for (uint reach = 1u; reach < gl_WorkGroupSize.x; reach *= 2u) {
        barrier();
        if (lane >= reach) value = combine(row_scratch[lane - reach], value);
        barrier();
        row_scratch[lane] = value;
    }
    barrier();
    all = row_scratch[gl_WorkGroupSize.x - 1u];
    if (lane == 0u) return NOTHING;
    return row_scratch[lane - 1u];
}

void scan_together(inout ROW_TYPE state, uint row, uint start, uint end) {
    for (uint base = start; base < end; base += gl_WorkGroupSize.x * ITEMS) {
        const uint first = base + gl_LocalInvocationIndex * ITEMS;
        ROW_TYPE own[ITEMS];
        ROW_TYPE total = NOTHING;
        for (uint i = 0u; i < ITEMS; ++i) {
            own[i] = NOTHING;
            if (first + i < end) own[i] = read(row, first + i);
            total = combine(total, own[i]);
        }
        ROW_TYPE all;
        ROW_TYPE before = combine(state, scan_lanes(total, all));
        for (uint i = 0u; i < ITEMS; ++i) {
            const ROW_TYPE after = combine(before, own[i]);
            if (first + i < end) write(before, after, row, first + i);
            before = after;
        }
        state = combine(state, all);
    }
}

void main() {
    for (uint item = first_row(); item < rows * parts; item += row_stride()) {
        const uint part = item / rows;
        const uint row = item - part * rows;
        const uint start = part * chunk;
        const uint end = min(start + chunk, columns);
        ROW_TYPE state = read_carry(item);
        if (WHOLE_GROUP != 0u) {
            scan_together(state, row, start, end);
        } else {
            scan_alone(state, row, start, end);
        }
        if (writes > STATES && first_column() == 0u) write_state(state, item, rows * parts);
    }
}
