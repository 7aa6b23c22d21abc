#version 450
// Merges pairs of sorted runs: each key goes to its place in its own run plus the number of keys before it in the other.
// from: keys, then columns, (2, rows, columns), in runs of a width of which the first keep values count. result: the same with
// twice the width; or in the last pass the values of x or their columns, (rows / inner, keep, inner).
// One invocation places one key, by binary search. Equal keys keep their order: those of the left run come first.
// Source: Satish, Harris and Garland, Designing efficient sorting algorithms for manycore GPUs, 2009.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;

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
};

uint run_length(uint start) { return start < columns ? min(min(width, keep), columns - start) : 0u; }

void main() {
    const uint count = rows * columns;
    const uint most = min(width, keep);
    const uint pairs = (columns + 2u * width - 1u) / (2u * width);
    const uint items = rows * pairs * 2u * most;
    for (uint item = gl_GlobalInvocationID.x; item < items; item += gl_NumWorkGroups.x * gl_WorkGroupSize.x) {
        const uint row = item / (pairs * 2u * most);
        const uint in_row = item - row * pairs * 2u * most;
        const uint pair = in_row / (2u * most);
        const uint in_pair = in_row - pair * 2u * most;
        const bool is_right = in_pair >= most;
        const uint place = is_right ? in_pair - most : in_pair;
        const uint left = pair * 2u * width;
        const uint right = left + width;
        const uint base = from_offset + row * columns;
        if (place < run_length(is_right ? right : left)) {
            const uint at = base + (is_right ? right : left) + place;
            const uint key = from[at];
            const uint other = base + (is_right ? left : right);
            uint low = 0u;
            uint high = run_length(is_right ? left : right);
            while (low < high) {
                const uint middle = (low + high) / 2u;
                const uint found = from[other + middle];
                if (found < key || (is_right && found == key)) {
                    low = middle + 1u;
                } else {
                    high = middle;
                }
            }
            const uint rank = place + low;
            if (rank < keep) {
                const uint column = from[at + count];
                if (is_last != 0u) {
                    const uint to = row / inner * keep * inner + row % inner + rank * inner;
                    const uint word = row / inner * columns * inner + row % inner + column * inner;
                    result[result_offset + to] = takes_values != 0u ? x[x_offset + word] : column;
                } else {
                    const uint to = result_offset + row * columns + left + rank;
                    result[to] = key;
                    result[to + count] = column;
                }
            }
        }
    }
}
