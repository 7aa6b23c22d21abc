#version 450
// result = (x - mean) / sqrt(variance + eps) * gamma + beta, mean and variance over each row.
// x, result: (rows, columns), gamma, beta: (columns). CENTERED 0: mean is 0, which is the RMS norm.
// One group or one invocation computes one row (rows.glsl).
// Source: Chan, Golub and LeVeque, Algorithms for computing the sample variance, 1983 (the two-pass form); Ba, Kiros and Hinton, Layer normalization, 2016; Zhang and Sennrich, Root mean square layer normalization, 2019.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 4) const uint CENTERED = 1;
layout(constant_id = 5) const uint HAS_GAMMA = 0;
layout(constant_id = 6) const uint HAS_BETA = 0;
#define ROW_TYPE float
#include "rows.glsl"
float add(float left, float right) { return left + right; }
DEFINE_ROW_TREE(row_sum, add)

layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) readonly buffer Gamma { float gamma[]; };
layout(set = 0, binding = 2) readonly buffer Beta { float beta[]; };
layout(set = 0, binding = 3) writeonly buffer Result { float result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint gamma_offset;
    uint beta_offset;
    uint result_offset;
    uint rows;
    uint columns;
    float eps;
};

void main() {
    for (uint row = first_row(); row < rows; row += row_stride()) {
        const uint first = row * columns;
        float mean = 0.0;
        float rest = 0.0; // what rounding left of the mean, found from the differences, which are small
        if (CENTERED != 0u) {
            for (uint column = first_column(); column < columns; column += column_stride()) {
                mean += x[x_offset + first + column];
            }
            mean = row_sum(mean) / float(columns);
            for (uint column = first_column(); column < columns; column += column_stride()) {
                rest += x[x_offset + first + column] - mean;
            }
            rest = row_sum(rest) / float(columns);
        }
        float squares = 0.0;
        for (uint column = first_column(); column < columns; column += column_stride()) {
            const float centered = (x[x_offset + first + column] - mean) - rest;
            squares += centered * centered;
        }
        const float scale = 1.0 / sqrt(row_sum(squares) / float(columns) + eps);
        for (uint column = first_column(); column < columns; column += column_stride()) {
            float value = ((x[x_offset + first + column] - mean) - rest) * scale;
            if (HAS_GAMMA != 0u) value *= gamma[gamma_offset + column];
            if (HAS_BETA != 0u) value += beta[beta_offset + column];
            result[result_offset + first + column] = value;
        }
    }
}
