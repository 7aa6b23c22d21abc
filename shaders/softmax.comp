#version 450
// result[i] = exp(x[i] - max) / sum of exp(x - max), max and sum over the row of i.
// x, result: (rows / inner, columns, inner), contiguous; a row has one outer and one inner index.
// One group or one invocation computes one row (rows.glsl).
// Source: Milakov and Gimelshein, Online normalizer calculation for softmax, 2018 (the safe, three-pass form).
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "float_math.glsl"
#define ROW_TYPE float
#include "rows.glsl"
float add(float left, float right) { return left + right; }
DEFINE_ROW_TREE(row_max, safe_max)
DEFINE_ROW_TREE(row_sum, add)

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) buffer Result { float result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint result_offset;
    uint rows;
    uint columns;
    uint inner;
};

void main() {
    for (uint row = first_row(); row < rows; row += row_stride()) {
        const uint first = row / inner * columns * inner + row % inner;
        float largest = -INFINITY;
        for (uint column = first_column(); column < columns; column += column_stride()) {
            largest = safe_max(largest, x[x_offset + first + column * inner]);
        }
        largest = row_max(largest);
        float sum = 0.0;
        for (uint column = first_column(); column < columns; column += column_stride()) {
            const float e = safe_exp(x[x_offset + first + column * inner] - largest);
            result[result_offset + first + column * inner] = e;
            sum += e;
        }
        sum = row_sum(sum);
        for (uint column = first_column(); column < columns; column += column_stride()) {
            result[result_offset + first + column * inner] /= sum; // its own write of the loop before
        }
    }
}
