#version 450
// result = (x - mean) / sqrt(variance + eps) * gamma + beta, mean and variance over each row.
// x, result: (rows, columns), gamma, beta: (columns), columns a multiple of four. CENTERED 0: mean is 0, which is the RMS norm.
// Some lanes of a subgroup compute one row, which stays in their registers, as gamma and beta do (subgroup_rows.glsl).
// Source: Chan, Golub and LeVeque, Algorithms for computing the sample variance, 1983 (the two-pass form); Ba, Kiros and Hinton, Layer normalization, 2016; Zhang and Sennrich, Root mean square layer normalization, 2019.
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#define WORDS_64
layout(local_size_x = 8, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 5) const uint CENTERED = 1;
layout(constant_id = 6) const uint HAS_GAMMA = 0;
layout(constant_id = 7) const uint HAS_BETA = 0;
#include "load_vec4.glsl"
#include "subgroup_rows.glsl"
#include "norm_range.glsl"

layout(set = 0, binding = 0) readonly buffer X { LOADED x[]; };
layout(set = 0, binding = 1) readonly buffer Gamma { vec4 gamma[]; };
layout(set = 0, binding = 2) readonly buffer Beta { vec4 beta[]; };
layout(set = 0, binding = 3) writeonly buffer Result { WORDS result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint gamma_offset;
    uint beta_offset;
    uint result_offset;
    uint rows;
    uint columns;
    float eps;
};

float sum_of(vec4 four) { return (four.x + four.y) + (four.z + four.w); }

// Norms a row without holding it.
void norm_again(uint from, uint to, uint vec4_count) {
    uint largest = 0u;
    for (uint i = 0u; i < vec4_count; ++i) largest = max(largest, largest_word(as_vec4(x[from + i])));
    const float by = power_for(largest, eps);
    vec4 total = vec4(0.0);
    for (uint i = lane(); i < vec4_count * CENTERED; i += LANES_PER_ROW) total += times(as_vec4(x[from + i]), by);
    const float mean = sum_of_lanes(sum_of(total)) / float(columns);
    vec4 rests = vec4(0.0);
    vec4 squares = vec4(0.0);
    for (uint i = lane(); i < vec4_count; i += LANES_PER_ROW) {
        const vec4 centered = times(as_vec4(x[from + i]), by) - mean;
        rests += centered;
        squares += centered * centered;
    }
    const float rest = CENTERED != 0u ? sum_of_lanes(sum_of(rests)) / float(columns) : 0.0;
    const float variance = sum_of_lanes(sum_of(squares)) / float(columns) - rest * rest;
    const float scale = scale_of(variance, eps, by);
    for (uint i = lane(); i < vec4_count; i += LANES_PER_ROW) {
        vec4 done = ((times(as_vec4(x[from + i]), by) - mean) - rest) * scale;
        if (HAS_GAMMA != 0u) done *= gamma[gamma_offset / 4u + i];
        if (HAS_BETA != 0u) done += beta[beta_offset / 4u + i];
        result[to + i] = stored(floatBitsToUint(done));
    }
}

void main() {
    const uint vec4_count = columns / 4u;
    vec4 factor[VEC4S_PER_LANE];
    vec4 shift[VEC4S_PER_LANE];
    for (uint k = 0u; k < VEC4S_PER_LANE; ++k) {
        const uint vec4_index = min(own_vec4(k), vec4_count - 1u);
        factor[k] = vec4(1.0);
        shift[k] = vec4(0.0);
        if (HAS_GAMMA != 0u) factor[k] = gamma[gamma_offset / 4u + vec4_index];
        if (HAS_BETA != 0u) shift[k] = beta[beta_offset / 4u + vec4_index];
    }
    const uint run = run_of_rows(rows);
    const uint end = min(gl_WorkGroupID.x * run + run, rows);
    const uint start = gl_WorkGroupID.x * run;
    bool lost = false; // alike in all lanes of a row
    for (uint first = start; first < end; first += rows_of_group()) {
        const uint row = first + gl_LocalInvocationIndex / LANES_PER_ROW;
        const uint from = x_offset / 4u + min(row, rows - 1u) * vec4_count;
        const uint to = result_offset / 4u + row * vec4_count;
        vec4 held[VEC4S_PER_LANE];
        for (uint k = 0u; k < VEC4S_PER_LANE; ++k) held[k] = as_vec4(x[from + min(own_vec4(k), vec4_count - 1u)]);
        float mean = 0.0;
        if (CENTERED != 0u) {
            // around a value of the row, so that a mean far from 0 costs no digits
            const float pivot = subgroupShuffle(held[0].x, gl_SubgroupInvocationID / LANES_PER_ROW * LANES_PER_ROW);
            vec4 total = vec4(0.0);
            for (uint k = 0u; k < VEC4S_PER_LANE; ++k) {
                total += mix(vec4(0.0), held[k] - pivot, bvec4(own_vec4(k) < vec4_count));
            }
            mean = pivot + sum_of_lanes(sum_of(total)) / float(columns);
        }
        vec4 rests = vec4(0.0); // what rounding left of the mean, found from the differences, which are small
        vec4 squares = vec4(0.0);
        for (uint k = 0u; k < VEC4S_PER_LANE; ++k) {
            held[k] -= mean;
            const vec4 counted = mix(vec4(0.0), held[k], bvec4(own_vec4(k) < vec4_count));
            rests += counted;
            squares += counted * counted;
        }
        const float rest = CENTERED != 0u ? sum_of_lanes(sum_of(rests)) / float(columns) : 0.0;
        const float variance = sum_of_lanes(sum_of(squares)) / float(columns) - rest * rest;
        const float scale = rate_of(variance, eps);
        for (uint k = 0u; k < VEC4S_PER_LANE; ++k) {
            if (row < end && own_vec4(k) < vec4_count) {
                const vec4 done = (held[k] - rest) * scale * factor[k] + shift[k];
                result[to + own_vec4(k)] = stored(floatBitsToUint(done));
            }
        }
        lost = lost || is_lost(scale);
    }
    for (uint first = lost ? start : end; first < end; first += rows_of_group()) {
        const uint row = first + gl_LocalInvocationIndex / LANES_PER_ROW;
        if (row < end) norm_again(x_offset / 4u + row * vec4_count, result_offset / 4u + row * vec4_count, vec4_count);
    }
}
