#version 450
// result[i] = exp(v[i] - max) / sum of exp(v - max), max and sum over the row of i; or its log.
// x, result: (rows, columns), contiguous, columns a multiple of four.
// Some lanes of a subgroup compute one row, which stays in their registers (subgroup_rows.glsl).
// Source: Milakov and Gimelshein, Online normalizer calculation for softmax, 2018 (the safe, three-pass form).
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#define WORDS_64
layout(local_size_x = 8, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 5) const uint LOGARITHM = 0;
#include "float_math.glsl"
#include "exp_quad.glsl"
#include "load_vec4.glsl"
#include "subgroup_rows.glsl"

layout(set = 0, binding = 0) readonly buffer X { LOADED x[]; };
layout(set = 0, binding = 1) writeonly buffer Result { WORDS result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint result_offset;
    uint rows;
    uint columns;
    uint inner;
};

void main() {
    const uint vec4_count = columns / 4u;
    const uint run = run_of_rows(rows);
    const uint end = min(gl_WorkGroupID.x * run + run, rows);
    for (uint first = gl_WorkGroupID.x * run; first < end; first += rows_of_group()) {
        const uint row = first + gl_LocalInvocationIndex / LANES_PER_ROW;
        const uint from = x_offset / 4u + min(row, rows - 1u) * vec4_count;
        const uint to = result_offset / 4u + row * vec4_count;
        vec4 held[VEC4S_PER_LANE];
        vec4 most = vec4(-INFINITY); // NaN may be passed over, as it is in the sum
        for (uint k = 0u; k < VEC4S_PER_LANE; ++k) {
            held[k] = as_vec4(x[from + min(own_vec4(k), vec4_count - 1u)]);
            most = max(most, held[k]);
        }
        const float largest = largest_of_lanes(max(max(most.x, most.y), max(most.z, most.w)));
        vec4 total = vec4(0.0);
        for (uint k = 0u; k < VEC4S_PER_LANE; ++k) {
            const vec4 below = held[k] - largest;
            const vec4 power = exp_of_negative(below);
            total += mix(vec4(0.0), power, bvec4(own_vec4(k) < vec4_count));
            held[k] = LOGARITHM != 0u ? below : power;
        }
        const float sum = sum_of_lanes((total.x + total.y) + (total.z + total.w));
        const float log_sum = LOGARITHM != 0u ? safe_log(sum) : 0.0;
        const float scale = 1.0 / sum;
        for (uint k = 0u; k < VEC4S_PER_LANE; ++k) {
            if (row < end && own_vec4(k) < vec4_count) {
                const vec4 done = LOGARITHM != 0u ? held[k] - log_sum : held[k] * scale;
                result[to + own_vec4(k)] = stored(floatBitsToUint(done));
            }
        }
    }
}
