#version 450
// Sorts every chunk of every row: each value goes to its rank, the number of values that stand before it.
// x: (rows / inner, columns, inner), contiguous. result: runs for sort_merge (sort_runs.glsl); or where a row is one chunk the
// sorted values or their columns, (rows / inner, keep, inner).
// One invocation finds the rank of one value. Equal keys keep their order; ranks of keep and more are left out.
// Source: Knuth, The Art of Computer Programming 3, 5.2 (comparison counting).
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "sort_key.glsl"
#include "sort_runs.glsl"

layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint result_offset;
    uint rows;
    uint columns;
    uint inner;
    uint keep;
    uint flip; // all ones: largest first
    uint takes_values;
    uint is_last;
    uint chunk;
};

uint key_of(uint word) {
#if defined(FLOAT32)
    return float_key(word) ^ flip;
#elif defined(INT32)
    return int_key(word) ^ flip;
#else
    return word ^ flip;
#endif
}

void main() {
    const uint count = rows * columns;
    for (uint item = gl_GlobalInvocationID.x; item < count; item += gl_NumWorkGroups.x * gl_WorkGroupSize.x) {
        const uint row = item / columns;
        const uint column = item - row * columns;
        const uint at = x_offset + row / inner * columns * inner + row % inner;
        const uint word = x[at + column * inner];
        const uint key = key_of(word);
        const uint start = column - column % chunk;
        const uint end = min(start + chunk, columns);
        uint rank = 0u;
        for (uint other = start; other < end; ++other) {
            const uint other_key = key_of(x[at + other * inner]);
            rank += uint(other_key < key || (other_key == key && other < column));
        }
        if (rank < keep) {
            if (is_last != 0u) {
                const uint to = row / inner * keep * inner + row % inner + rank * inner;
                result[result_offset + to] = takes_values != 0u ? word : column;
            } else {
                const uint words = row_words(columns, chunk, keep);
                const uint to = result_offset + row * words + start / chunk * run_words(chunk, keep) + rank;
                result[to] = key;
                result[to + rows * words] = column;
            }
        }
    }
}
