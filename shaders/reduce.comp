#version 450
// result[i] = sum, mean, max or min of x over the reduced axes, at index i of the kept axes.
// x: strided by kept and by reduced axes, innermost first; result: (rows), contiguous.
// One group or one invocation computes one result (rows.glsl). Sums carry their rounding errors along.
// Long rows are done in parts, one dispatch after the other: columns start..end, added to what result holds.
// Source: Knuth, The Art of Computer Programming 2, 4.2.2 (the exact error of a sum).
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 4) const uint OP = 0;
layout(constant_id = 5) const uint IS_FIRST = 1;
layout(constant_id = 6) const uint IS_LAST = 1;
#include "float_math.glsl"
const uint SUM = 0u;
const uint MEAN = 1u;
const uint MAX = 2u;

// What a lane knows of its part of a row: for sums the total and its rounding error.
#if FLOAT
#define ROW_TYPE vec2
#define VALUE(word) uintBitsToFloat(word)
vec2 add(vec2 left, vec2 right) {
    precise const float total = left.x + right.x;
    precise const float part = total - left.x;
    precise const float left_over = left.x - (total - part);
    precise const float right_over = right.x - part;
    precise const float error = left_over + right_over;
    return vec2(total, left.y + right.y + error);
}
#define LARGER safe_max
#define SMALLER safe_min
#else
#define ROW_TYPE ivec2
#define VALUE(word) int(word)
ivec2 add(ivec2 left, ivec2 right) { return left + right; }
#define LARGER max
#define SMALLER min
#endif

ROW_TYPE combine(ROW_TYPE left, ROW_TYPE right) {
    if (OP <= MEAN) return add(left, right);
    if (OP == MAX) return ROW_TYPE(LARGER(left.x, right.x), 0);
    return ROW_TYPE(SMALLER(left.x, right.x), 0);
}
#include "rows.glsl"
DEFINE_ROW_TREE(combine_lanes, combine)

layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1) buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint result_offset;
    uint rows;
    uint columns;
    uint start;
    uint end;
    uint kept_sizes[3];
    uint kept_strides[4];
    uint reduced_sizes[3];
    uint reduced_strides[4];
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

uint reduced_word(uint index) {
    uint at = 0u;
    for (uint axis = 0u; axis < 3u; ++axis) {
        const uint next = index / reduced_sizes[axis];
        at += (index - next * reduced_sizes[axis]) * reduced_strides[axis];
        index = next;
    }
    return at + index * reduced_strides[3];
}

#if FLOAT
uint finish(vec2 sum) {
    // an infinite or undefined total has no rounding error
    float value = is_nan(sum.x) || is_inf(sum.x) || OP > MEAN ? sum.x : sum.x + sum.y;
    if (OP == MEAN && IS_LAST != 0u) value = columns == 0u ? NOT_A_NUMBER : value / float(columns);
    return floatBitsToUint(value);
}
#else
uint finish(ivec2 sum) { return uint(sum.x); }
#endif

void main() {
    for (uint row = first_row(); row < rows; row += row_stride()) {
        const uint at = x_offset + kept_word(row);
        // max and min start with the first value: a lane without any changes nothing
        ROW_TYPE total = ROW_TYPE(OP <= MEAN ? VALUE(0u) : VALUE(x[at]), 0);
        if (IS_FIRST == 0u && first_column() == 0u) {
            total = combine(total, ROW_TYPE(VALUE(result[result_offset + row]), 0));
        }
        for (uint column = start + first_column(); column < end; column += column_stride()) {
            total = combine(total, ROW_TYPE(VALUE(x[at + reduced_word(column)]), 0));
        }
        total = combine_lanes(total);
        if (first_column() == 0u) result[result_offset + row] = finish(total);
    }
}
