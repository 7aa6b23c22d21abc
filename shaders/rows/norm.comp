#version 450
// result = (x - mean) / sqrt(variance + eps) * gamma + beta, mean and variance over each row.
// x, result: (rows, columns), gamma, beta: (columns). CENTERED 0: mean is 0, which is the RMS norm.
// One invocation or some lanes of a group compute one row (quad_rows.glsl).
// Source: Chan, Golub and LeVeque, Algorithms for computing the sample variance, 1983 (the two-pass form); Ba, Kiros and Hinton, Layer normalization, 2016; Zhang and Sennrich, Root mean square layer normalization, 2019.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 5) const uint CENTERED = 1;
layout(constant_id = 6) const uint HAS_GAMMA = 0;
layout(constant_id = 7) const uint HAS_BETA = 0;
#include "quads.glsl"
#include "quad_rows.glsl"
float add(float left, float right) { return left + right; }
DEFINE_ROW_TREE(row_sum, float, add)
vec2 add_both(vec2 left, vec2 right) { return left + right; }
DEFINE_ROW_TREE(row_sums, vec2, add_both)

layout(set = 0, binding = 0) readonly buffer X { vec4 x[]; };
layout(set = 0, binding = 1) readonly buffer Gamma { vec4 gamma[]; };
layout(set = 0, binding = 2) readonly buffer Beta { vec4 beta[]; };
layout(set = 0, binding = 3) writeonly buffer Result { vec4 result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint gamma_offset;
    uint beta_offset;
    uint result_offset;
    uint rows;
    uint columns;
    float eps;
};

const uint PART = 64u; // rounds that are summed apart, as a long sum loses digits

float sum_of(vec4 four) { return (four.x + four.y) + (four.z + four.w); }

// The values of four columns, or of one, as they are stored.
vec4 finish(vec4 value, uint column) {
    if (HAS_GAMMA != 0u) value *= gamma[(gamma_offset + column) / 4u];
    if (HAS_BETA != 0u) value += beta[(beta_offset + column) / 4u];
    return value;
}
float finish(float value, uint column) {
    if (HAS_GAMMA != 0u) value *= WORD(gamma, gamma_offset + column);
    if (HAS_BETA != 0u) value += WORD(beta, beta_offset + column);
    return value;
}

void main() {
    const uint step = gl_NumWorkGroups.x * rows_of_group();
    for (uint first = gl_WorkGroupID.x * rows_of_group(); first < rows; first += step) {
        const uint number = first + row_in_group();
        const bool there = number < rows;
        const Row row = row_of(x_offset + number * columns, columns, 1u, there);
        // around a value of the row, so that a mean far from 0 costs no digits
        const float pivot = WORD(x, there ? row.first : x_offset);
        float mean = 0.0;
        vec4 total = vec4(0.0);
        for (uint start = lane(); start < row.quads * CENTERED; start += PART * LANES) {
            vec4 part = vec4(0.0);
            const uint end = min(start + PART * LANES, row.quads);
            for (uint i = start; i < end; i += LANES) part += x[row.quad + i] - pivot;
            total += part;
        }
        for (uint i = lane(); i < row.edges * CENTERED; i += LANES) total.x += WORD(x, row.first + edge_column(row, i)) - pivot;
        if (CENTERED != 0u) mean = pivot + row_sum(sum_of(total)) / float(columns);
        vec4 rests = vec4(0.0); // what rounding left of the mean, found from the differences, which are small
        vec4 squares = vec4(0.0);
        for (uint start = lane(); start < row.quads; start += PART * LANES) {
            vec4 part = vec4(0.0);
            const uint end = min(start + PART * LANES, row.quads);
            for (uint i = start; i < end; i += LANES) {
                const vec4 centered = x[row.quad + i] - mean;
                rests += centered;
                part += centered * centered;
            }
            squares += part;
        }
        for (uint i = lane(); i < row.edges; i += LANES) {
            const float centered = WORD(x, row.first + edge_column(row, i)) - mean;
            rests.x += centered;
            squares.x += centered * centered;
        }
        const vec2 sums = row_sums(vec2(sum_of(rests), sum_of(squares))) / float(columns);
        const float rest = CENTERED != 0u ? sums.x : 0.0;
        const float variance = sums.y - rest * rest;
        const float scale = 1.0 / sqrt((variance < 0.0 ? 0.0 : variance) + eps);
        // gamma and beta start at a multiple of four, and so must the row
        const bool along = columns % 4u == 0u || HAS_GAMMA + HAS_BETA == 0u;
        const uint quads = along ? row.quads : 0u;
        const uint edges = along ? row.edges : there ? columns : 0u;
        // from a word of x to that of the result, and from a quad: these wrap where it lies in front of x, so each is divided first
        const uint to = result_offset - x_offset;
        const uint to_quad = result_offset / 4u - x_offset / 4u;
        for (uint i = lane(); i < quads; i += LANES) {
            const vec4 value = ((x[row.quad + i] - mean) - rest) * scale;
            result[to_quad + row.quad + i] = finish(value, 4u * i);
        }
        for (uint i = lane(); i < edges; i += LANES) {
            const uint column = along ? edge_column(row, i) : i;
            const float value = ((WORD(x, row.first + column) - mean) - rest) * scale;
            WORD(result, to + row.first + column) = finish(value, column);
        }
    }
}
