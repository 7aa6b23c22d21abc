#version 450
// result = (h - mean(h) - n mean(h n)) * rate with h = g * gamma, n = (x - mean(x)) * rate, rate = 1 / sqrt(variance(x) + eps);
// g, x, result: (rows, columns), gamma: (columns). CENTERED 0: the means of x and h are 0, which is the RMS norm.
// One invocation or some invocations of a workgroup compute one row (vec4_rows.glsl).
// Source: Ba, Kiros and Hinton, Layer normalization, 2016, differentiated; Zhang and Sennrich, Root mean square layer normalization, 2019.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 5) const uint CENTERED = 1;
layout(constant_id = 6) const uint HAS_GAMMA = 0;
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

layout(set = 0, binding = 0) readonly buffer G { vec4 g[]; };
layout(set = 0, binding = 1) readonly buffer X { vec4 x[]; };
layout(set = 0, binding = 2) readonly buffer Gamma { vec4 gamma[]; };
layout(set = 0, binding = 3) writeonly buffer Result { vec4 result[]; };
layout(push_constant) uniform Push {
    uint g_offset;
    uint x_offset;
    uint gamma_offset;
    uint result_offset;
    uint rows;
    uint columns;
    float eps;
};

const uint PART = 64u; // rounds that are summed apart, as a long sum loses digits

float sum_of(vec4 four) { return (four.x + four.y) + (four.z + four.w); }

// Values of a row by the number of the vec4, or of the column.
vec4 x_vec4(uint at, uint i) { return x[(x_offset + at) / 4u + i]; }
vec4 h_vec4(uint at, uint i) {
    const vec4 value = g[(g_offset + at) / 4u + i];
    return HAS_GAMMA != 0u ? value * gamma[gamma_offset / 4u + i] : value;
}
float word_of_x(uint at, uint i) { return WORD(x, x_offset + at + i); }
float word_of_h(uint at, uint i) {
    const float value = WORD(g, g_offset + at + i);
    return HAS_GAMMA != 0u ? value * WORD(gamma, gamma_offset + i) : value;
}

// Computes a row whose values are multiplied by a power of two before; returns whether it is lost all the same.
// there: or one past the last row, which takes part in the sums of the others.
bool one_row(uint number, bool there, float by) {
    const uint at = number * columns;
    const uint vec4_count = there && columns % 4u == 0u ? columns / 4u : 0u; // rows start at a vec4 then
    const uint edges = there && columns % 4u != 0u ? columns : 0u;
    // around a value of the row, so that a mean far from 0 costs no digits
    const float pivot = times(word_of_x(there ? at : 0u, 0u), by);
    float mean = 0.0;
    if (CENTERED != 0u) {
        vec4 total = vec4(0.0);
        for (uint i = lane(); i < vec4_count; i += LANES_PER_ROW) total += times(x_vec4(at, i), by) - pivot;
        for (uint i = lane(); i < edges; i += LANES_PER_ROW) total.x += times(word_of_x(at, i), by) - pivot;
        mean = pivot + row_sum(sum_of(total)) / float(columns);
    }
    vec4 rests = vec4(0.0); // what rounding left of the mean, found from the differences, which are small
    vec4 squares = vec4(0.0);
    for (uint start = lane(); start < vec4_count; start += PART * LANES_PER_ROW) {
        vec4 part = vec4(0.0);
        const uint end = min(start + PART * LANES_PER_ROW, vec4_count);
        for (uint i = start; i < end; i += LANES_PER_ROW) {
            const vec4 centered = times(x_vec4(at, i), by) - mean;
            rests += centered;
            part += centered * centered;
        }
        squares += part;
    }
    for (uint i = lane(); i < edges; i += LANES_PER_ROW) {
        const float centered = times(word_of_x(at, i), by) - mean;
        rests.x += centered;
        squares.x += centered * centered;
    }
    const vec2 spread = row_sums(vec2(sum_of(rests), sum_of(squares))) / float(columns);
    const float rest = CENTERED != 0u ? spread.x : 0.0;
    const float scale = scale_of(spread.y - rest * rest, eps, by);
    vec4 slopes = vec4(0.0);
    vec4 along = vec4(0.0);
    for (uint start = lane(); start < vec4_count; start += PART * LANES_PER_ROW) {
        vec4 part = vec4(0.0);
        const uint end = min(start + PART * LANES_PER_ROW, vec4_count);
        for (uint i = start; i < end; i += LANES_PER_ROW) {
            const vec4 h = h_vec4(at, i);
            slopes += h;
            part += h * (((times(x_vec4(at, i), by) - mean) - rest) * scale);
        }
        along += part;
    }
    for (uint i = lane(); i < edges; i += LANES_PER_ROW) {
        const float h = word_of_h(at, i);
        slopes.x += h;
        along.x += h * (((times(word_of_x(at, i), by) - mean) - rest) * scale);
    }
    const vec2 sums = row_sums(vec2(sum_of(slopes), sum_of(along))) / float(columns);
    const float middle = CENTERED != 0u ? sums.x : 0.0;
    const float rate = scale * by;
    for (uint i = lane(); i < vec4_count; i += LANES_PER_ROW) {
        const vec4 normed = ((times(x_vec4(at, i), by) - mean) - rest) * scale;
        result[(result_offset + at) / 4u + i] = (h_vec4(at, i) - middle - normed * sums.y) * rate;
    }
    for (uint i = lane(); i < edges; i += LANES_PER_ROW) {
        const float normed = ((times(word_of_x(at, i), by) - mean) - rest) * scale;
        WORD(result, result_offset + at + i) = (word_of_h(at, i) - middle - normed * sums.y) * rate;
    }
    return there && is_lost(scale);
}

// The power of two that brings a row near 1.
float power_of_row(uint number, bool there) {
    const uint at = number * columns;
    uint largest = 0u;
    for (uint i = lane(); i < (there ? columns : 0u); i += LANES_PER_ROW) largest = max(largest, floatBitsToUint(word_of_x(at, i)) & 0x7fffffffu);
    return power_for(row_largest(largest), eps);
}

void main() {
    const uint step = gl_NumWorkGroups.x * rows_of_group();
    bool lost = false;
    for (uint first = gl_WorkGroupID.x * rows_of_group(); first < rows; first += step) {
        const uint number = first + row_in_group();
        const bool found = one_row(number, number < rows, 1.0);
        lost = lost || found;
    }
    const uint from = any_lost(lost) ? gl_WorkGroupID.x * rows_of_group() : rows;
    for (uint first = from; first < rows; first += step) {
        const uint number = first + row_in_group();
        const float by = power_of_row(number, number < rows);
        one_row(number, number < rows, by);
    }
}
