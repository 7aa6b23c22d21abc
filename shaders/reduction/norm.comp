#version 450
// result = (x - mean) / sqrt(variance + eps) * gamma + beta, mean and variance over each row.
// x, result: (rows, columns), gamma, beta: (columns). CENTERED 0: mean is 0, which is the RMS norm.
// One invocation or some invocations of a workgroup compute one row (vec4_rows.glsl). FP16_RESULT: the result is float16; columns
// are then a multiple of four.
// Source: Chan, Golub and LeVeque, Algorithms for computing the sample variance, 1983 (the two-pass form); Ba, Kiros and Hinton, Layer normalization, 2016; Zhang and Sennrich, Root mean square layer normalization, 2019.
#extension GL_GOOGLE_include_directive : require
#ifdef FP16_RESULT
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#endif
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 5) const uint CENTERED = 1;
layout(constant_id = 6) const uint HAS_GAMMA = 0;
layout(constant_id = 7) const uint HAS_BETA = 0;
#include "vec4.glsl"
#include "vec4_rows.glsl"
#include "norm_range.glsl"
float add(float left, float right) { return left + right; }
DEFINE_ROW_TREE(row_sum, float, add)
vec2 add_both(vec2 left, vec2 right) { return left + right; }
DEFINE_ROW_TREE(row_sums, vec2, add_both)
DEFINE_ROW_TREE(row_largest, uint, max)

// Whether any row of the group is lost: its invocations meet at barriers, so all go on together.
#if GROUP
shared uint lost_rows;
bool any_lost(bool lost) {
    if (gl_LocalInvocationIndex == 0u) lost_rows = 0u;
    barrier();
    if (lost) lost_rows = 1u;
    barrier();
    return lost_rows != 0u;
}
#else
bool any_lost(bool lost) { return lost; }
#endif

layout(set = 0, binding = 0) readonly buffer X { vec4 x[]; };
layout(set = 0, binding = 1) readonly buffer Gamma { vec4 gamma[]; };
layout(set = 0, binding = 2) readonly buffer Beta { vec4 beta[]; };
#ifdef FP16_RESULT
#define STORED uvec2
#else
#define STORED vec4
#endif
layout(set = 0, binding = 3) writeonly buffer Result { STORED result[]; };
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

// Stores the results of a row, of which NORMED makes each value.
#ifdef FP16_RESULT
uvec2 fp16_of(vec4 values) { return uvec2(packFloat2x16(f16vec2(values.xy)), packFloat2x16(f16vec2(values.zw))); }
#define STORE_ROW(NORMED) { \
    const uint to_four = result_offset / 2u - x_offset / 4u + row.first_vec4; \
    for (uint i = lane(); i < row.vec4_count; i += LANES_PER_ROW) { \
        result[to_four + i] = fp16_of(finish(NORMED(x[row.first_vec4 + i]), 4u * i)); \
    } }
#else
#define STORE_ROW(NORMED) { \
    /* gamma and beta start at a multiple of four, and so must the row */ \
    const bool along = columns % 4u == 0u || HAS_GAMMA + HAS_BETA == 0u; \
    const uint vec4_count = along ? row.vec4_count : 0u; \
    const uint edges = along ? row.edges : there ? columns : 0u; \
    /* from a word of x to that of the result, and from a vec4: these wrap where it lies in front of x, so each is divided first */ \
    const uint to = result_offset - x_offset; \
    const uint to_vec4 = result_offset / 4u - x_offset / 4u; \
    for (uint i = lane(); i < vec4_count; i += LANES_PER_ROW) { \
        result[to_vec4 + row.first_vec4 + i] = finish(NORMED(x[row.first_vec4 + i]), 4u * i); \
    } \
    for (uint i = lane(); i < edges; i += LANES_PER_ROW) { \
        const uint column = along ? edge_column(row, i) : i; \
        WORD(result, to + row.first + column) = finish(NORMED(WORD(x, row.first + column)), column); \
    } }
#endif
#define NORMED(value) (((value) - mean) - rest) * scale
#define NORMED_AGAIN(value) ((times(value, by) - mean) - rest) * scale

// there: or one past the last row, which takes part in the sums of the others.
void norm_again(uint number, bool there) {
    const Row row = row_of(x_offset + number * columns, columns, 1u, there);
    uint largest = 0u;
    for (uint i = lane(); i < row.vec4_count; i += LANES_PER_ROW) largest = max(largest, largest_word(x[row.first_vec4 + i]));
    for (uint i = lane(); i < row.edges; i += LANES_PER_ROW) largest = max(largest, largest_word(vec4(WORD(x, row.first + edge_column(row, i)))));
    const float by = power_for(row_largest(largest), eps);
    vec4 total = vec4(0.0);
    for (uint i = lane(); i < row.vec4_count * CENTERED; i += LANES_PER_ROW) total += times(x[row.first_vec4 + i], by);
    for (uint i = lane(); i < row.edges * CENTERED; i += LANES_PER_ROW) total.x += times(WORD(x, row.first + edge_column(row, i)), by);
    const float mean = row_sum(sum_of(total)) / float(columns);
    vec4 rests = vec4(0.0);
    vec4 squares = vec4(0.0);
    for (uint i = lane(); i < row.vec4_count; i += LANES_PER_ROW) {
        const vec4 centered = times(x[row.first_vec4 + i], by) - mean;
        rests += centered;
        squares += centered * centered;
    }
    for (uint i = lane(); i < row.edges; i += LANES_PER_ROW) {
        const float centered = times(WORD(x, row.first + edge_column(row, i)), by) - mean;
        rests.x += centered;
        squares.x += centered * centered;
    }
    const vec2 sums = row_sums(vec2(sum_of(rests), sum_of(squares))) / float(columns);
    const float rest = CENTERED != 0u ? sums.x : 0.0;
    const float scale = scale_of(sums.y - rest * rest, eps, by);
    STORE_ROW(NORMED_AGAIN)
}

void main() {
    const uint step = gl_NumWorkGroups.x * rows_of_group();
    bool lost = false;
    for (uint first = gl_WorkGroupID.x * rows_of_group(); first < rows; first += step) {
        const uint number = first + row_in_group();
        const bool there = number < rows;
        const Row row = row_of(x_offset + number * columns, columns, 1u, there);
        // around a value of the row, so that a mean far from 0 costs no digits
        const float pivot = WORD(x, there ? row.first : x_offset);
        float mean = 0.0;
        vec4 total = vec4(0.0);
        for (uint start = lane(); start < row.vec4_count * CENTERED; start += PART * LANES_PER_ROW) {
            vec4 part = vec4(0.0);
            const uint end = min(start + PART * LANES_PER_ROW, row.vec4_count);
            for (uint i = start; i < end; i += LANES_PER_ROW) part += x[row.first_vec4 + i] - pivot;
            total += part;
        }
        for (uint i = lane(); i < row.edges * CENTERED; i += LANES_PER_ROW) total.x += WORD(x, row.first + edge_column(row, i)) - pivot;
        if (CENTERED != 0u) mean = pivot + row_sum(sum_of(total)) / float(columns);
        vec4 rests = vec4(0.0); // what rounding left of the mean, found from the differences, which are small
        vec4 squares = vec4(0.0);
        for (uint start = lane(); start < row.vec4_count; start += PART * LANES_PER_ROW) {
            vec4 part = vec4(0.0);
            const uint end = min(start + PART * LANES_PER_ROW, row.vec4_count);
            for (uint i = start; i < end; i += LANES_PER_ROW) {
                const vec4 centered = x[row.first_vec4 + i] - mean;
                rests += centered;
                part += centered * centered;
            }
            squares += part;
        }
        for (uint i = lane(); i < row.edges; i += LANES_PER_ROW) {
            const float centered = WORD(x, row.first + edge_column(row, i)) - mean;
            rests.x += centered;
            squares.x += centered * centered;
        }
        const vec2 sums = row_sums(vec2(sum_of(rests), sum_of(squares))) / float(columns);
        const float rest = CENTERED != 0u ? sums.x : 0.0;
        const float variance = sums.y - rest * rest;
        const float scale = rate_of(variance, eps);
        STORE_ROW(NORMED)
        lost = lost || there && is_lost(scale);
    }
    const uint from = any_lost(lost) ? gl_WorkGroupID.x * rows_of_group() : rows;
    for (uint first = from; first < rows; first += step) {
        const uint number = first + row_in_group();
        norm_again(number, number < rows);
    }
}
