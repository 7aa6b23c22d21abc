#version 450
// result[i] = exp(v[i] - max) / sum of exp(v - max), max and sum over the row of i; or its log. v is x under the mask.
// x, result: (rows / inner, columns, inner), contiguous; a row has one outer and one inner index. mask: by strides.
// One group or one invocation computes one row (rows.glsl).
// Source: Milakov and Gimelshein, Online normalizer calculation for softmax, 2018 (the safe, three-pass form).
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 4) const uint LOGARITHM = 0;
layout(constant_id = 5) const uint MASK = 0; // 0: none, 1: bools, 2: floats to add
#include "float_math.glsl"
#define ROW_TYPE float
#include "rows.glsl"
float add(float left, float right) { return left + right; }
DEFINE_ROW_TREE(row_max, safe_max)
DEFINE_ROW_TREE(row_sum, add)

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) readonly buffer Mask { uint mask[]; };
layout(set = 0, binding = 2) buffer Result { float result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint mask_offset;
    uint result_offset;
    uint rows;
    uint columns;
    uint inner;
    uint mask_column;
    uint mask_rank;
    uint mask_sizes[6];
    uint mask_strides[7];
};

uint mask_word(uint row) {
    uint at = mask_offset;
    for (uint axis = 0u; axis + 1u < mask_rank; ++axis) {
        const uint next = row / mask_sizes[axis];
        at += (row - next * mask_sizes[axis]) * mask_strides[axis];
        row = next;
    }
    return at + row * mask_strides[mask_rank - 1u];
}

float value(uint first, uint first_mask, uint column) {
    const float v = x[x_offset + first + column * inner];
    if (MASK == 0u) return v;
    const uint word = mask[first_mask + column * mask_column];
    if (MASK == 1u) return word != 0u ? v : -INFINITY;
    return v + uintBitsToFloat(word);
}

void main() {
    for (uint row = first_row(); row < rows; row += row_stride()) {
        const uint first = row / inner * columns * inner + row % inner;
        const uint first_mask = MASK == 0u ? 0u : mask_word(row);
        float largest = -INFINITY;
        for (uint column = first_column(); column < columns; column += column_stride()) {
            largest = safe_max(largest, value(first, first_mask, column));
        }
        largest = row_max(largest);
        float sum = 0.0;
        for (uint column = first_column(); column < columns; column += column_stride()) {
            const float e = safe_exp(value(first, first_mask, column) - largest);
            if (LOGARITHM == 0u) result[result_offset + first + column * inner] = e;
            sum += e;
        }
        sum = row_sum(sum);
        const float log_sum = LOGARITHM == 0u ? 0.0 : safe_log(sum);
        for (uint column = first_column(); column < columns; column += column_stride()) {
            const uint at = result_offset + first + column * inner;
            if (LOGARITHM == 0u) {
                result[at] /= sum; // its own write of the loop before
            } else {
                result[at] = (value(first, first_mask, column) - largest) - log_sum;
            }
        }
    }
}
