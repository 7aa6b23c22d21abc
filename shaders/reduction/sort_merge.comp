#version 450
// Merges pairs of sorted runs to runs of twice the width.
// from: runs of a width (sort_runs.glsl). result: runs of twice that; or in the last pass the values of x or their columns,
// (rows / inner, keep, inner).
// One invocation merges a block: it finds by binary search how many of the values before its own come from the left run.
// Equal keys keep their order: those of the left run come first.
// Source: Odeh, Green, Mwassi, Shmueli and Birk, Merge path: parallel merging made simple, 2012.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "sort_runs.glsl"

layout(set = 0, binding = 0) readonly buffer From { uint from[]; };
layout(set = 0, binding = 1) readonly buffer X { uint x[]; };
layout(set = 0, binding = 2) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint from_offset;
    uint x_offset;
    uint result_offset;
    uint rows;
    uint columns;
    uint inner;
    uint keep;
    uint takes_values;
    uint is_last;
    uint width;
    uint block;
};

uint run_length(uint start) { return start < columns ? min(run_words(width, keep), columns - start) : 0u; }

void write(uint at, uint row, uint pair, uint rank) {
    const uint column = from[at + rows * row_words(columns, width, keep)];
    if (is_last != 0u) {
        const uint to = row / inner * keep * inner + row % inner + rank * inner;
        const uint word = row / inner * columns * inner + row % inner + column * inner;
        result[result_offset + to] = takes_values != 0u ? x[x_offset + word] : column;
    } else {
        const uint words = row_words(columns, 2u * width, keep);
        const uint to = result_offset + row * words + pair * run_words(2u * width, keep) + rank;
        result[to] = from[at];
        result[to + rows * words] = column;
    }
}

// How many of the first `place` values of the merged run come from the left one.
uint count_left(uint left, uint left_length, uint right, uint right_length, uint place) {
    uint low = place > right_length ? place - right_length : 0u;
    uint high = min(place, left_length);
    while (low < high) {
        const uint middle = (low + high) / 2u;
        if (from[left + middle] <= from[right + place - 1u - middle]) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low;
}

void main() {
    const uint blocks = (run_words(2u * width, keep) + block - 1u) / block;
    const uint pairs = run_count(columns, 2u * width);
    const uint words = run_words(width, keep);
    const uint items = rows * pairs * blocks;
    for (uint item = gl_GlobalInvocationID.x; item < items; item += gl_NumWorkGroups.x * gl_WorkGroupSize.x) {
        const uint row = item / (pairs * blocks);
        const uint in_row = item - row * pairs * blocks;
        const uint pair = in_row / blocks;
        const uint start = pair * 2u * width;
        const uint left_length = run_length(start);
        const uint right_length = run_length(start + width);
        const uint first = (in_row - pair * blocks) * block;
        const uint end = min(first + block, min(left_length + right_length, keep));
        if (first < end) {
            const uint left = from_offset + row * row_words(columns, width, keep) + 2u * pair * words;
            const uint right = left + words;
            uint i = count_left(left, left_length, right, right_length, first);
            uint j = first - i;
            for (uint rank = first; rank < end; ++rank) {
                const bool takes_left = j >= right_length || (i < left_length && from[left + i] <= from[right + j]);
                write(takes_left ? left + i : right + j, row, pair, rank);
                i += uint(takes_left);
                j += uint(!takes_left);
            }
        }
    }
}
