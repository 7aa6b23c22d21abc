#version 450
// result = (x - mean) / sqrt(variance + eps) * gamma + beta, mean and variance over each row; the RMS norm: mean and beta are 0.
// x, result: (rows, columns), gamma, beta: (columns), columns a multiple of four.
// One invocation computes four rows, each read twice: mean and squares are joined block by block; gamma and beta are read once.
// Source: Chan, Golub and LeVeque, Algorithms for computing the sample variance, 1983 (joining blocks); Ba, Kiros and Hinton, Layer normalization, 2016; Zhang and Sennrich, Root mean square layer normalization, 2019.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
// by variants and not by constants: SwiftShader goes through both sides of a choice over a constant
#if defined(RMS_NORM) || defined(RMS_NORM_SCALED)
#define RMS
#endif
#if defined(RMS_NORM_SCALED) || defined(LAYER_NORM_SCALED) || defined(LAYER_NORM_SCALED_SHIFTED)
#define SCALED(value) (value) * scale
#else
#define SCALED(value) value
#endif
#if defined(LAYER_NORM_SHIFTED) || defined(LAYER_NORM_SCALED_SHIFTED)
#define FINISHED(value) SCALED(value) + shift
#else
#define FINISHED(value) SCALED(value)
#endif
const uint ROWS = 4u;
#include "norm_range.glsl"

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

float sum_of(vec4 four) { return (four.x + four.y) + (four.z + four.w); }

#ifdef RMS
#define KNOWN float
#define SCALE(known) known
const float CENTERED = 0.0;
// The factor of values.
float about(uint first, uint vec4_count) {
    const uint whole = vec4_count / 4u * 4u;
    float squares = 0.0;
    for (uint i = 0u; i < whole; i += 4u) {
        const vec4 a = x[first + i];
        const vec4 b = x[first + i + 1u];
        const vec4 c = x[first + i + 2u];
        const vec4 d = x[first + i + 3u];
        squares += (dot(a, a) + dot(b, b)) + (dot(c, c) + dot(d, d));
    }
    for (uint i = whole; i < vec4_count; ++i) {
        const vec4 value = x[first + i];
        squares += dot(value, value);
    }
    return 1.0 / sqrt(squares / float(columns) + eps);
}

vec4 normed(vec4 value, float scale) { return value * scale; }
#else
#include "two_sum.glsl"
#define KNOWN vec3
#define SCALE(known) known.z
const float CENTERED = 1.0;
// known: a mean, the squares of what differs from it, of how many values, and what the sum of squares left out by rounding.
vec4 join(vec4 known, float mean, float squares, float count) {
    const float all = known.z + count;
    const float share = count / all;
    const float apart = mean - known.x;
    const float added = squares + apart * (known.z * share) * apart;
    const vec2 sum = two_sum(known.y, added);
    return vec4(known.x + apart * share, sum.x, all, known.w + sum.y);
}

// The mean, what its rounding left out, and what differences from the mean are multiplied by. Summed up around the middle one
// of three values, so that neither a mean far from 0 nor one value far from all others costs digits.
vec3 about(uint first, uint vec4_count) {
    const uint whole = vec4_count / 4u * 4u;
    const float one = x[first].x;
    const float two = x[first + vec4_count / 2u].y;
    const float three = x[first + vec4_count - 1u].z;
    const float pivot = max(min(one, two), min(max(one, two), three));
    vec4 known = vec4(0.0);
    for (uint i = 0u; i < whole; i += 4u) {
        const vec4 a = x[first + i] - pivot;
        const vec4 b = x[first + i + 1u] - pivot;
        const vec4 c = x[first + i + 2u] - pivot;
        const vec4 d = x[first + i + 3u] - pivot;
        const float mean = ((sum_of(a) + sum_of(b)) + (sum_of(c) + sum_of(d))) / 16.0;
        const vec4 e = a - mean;
        const vec4 f = b - mean;
        const vec4 g = c - mean;
        const vec4 h = d - mean;
        known = join(known, mean, (dot(e, e) + dot(f, f)) + (dot(g, g) + dot(h, h)), 16.0);
    }
    for (uint i = whole; i < vec4_count; ++i) {
        const vec4 value = x[first + i] - pivot;
        const float mean = sum_of(value) / 4.0;
        const vec4 apart = value - mean;
        known = join(known, mean, dot(apart, apart), 4.0);
    }
    precise const float rounded = pivot + known.x;
    precise const float rest = (pivot - rounded) + known.x;
    const float squares = mix(known.y + known.w, known.y, is_inf(known.y));
    return vec3(rounded, rest, 1.0 / sqrt(squares / float(columns) + eps));
}

vec4 normed(vec4 value, vec3 known) {
    precise const vec4 centered = (value - known.x) - known.y;
    return centered * known.z;
}
#endif

// Norms a row of which `about` gave no scale.
void norm_again(uint source, uint target, uint vec4_count) {
    uint largest = 0u;
    for (uint i = 0u; i < vec4_count; ++i) largest = max(largest, largest_word(x[source + i]));
    const float by = power_for(largest, eps);
    vec4 total = vec4(0.0);
    for (uint i = 0u; i < vec4_count; ++i) total += times(x[source + i], by);
    const float mean = CENTERED * (sum_of(total) / float(columns));
    vec4 rests = vec4(0.0); // what rounding left of the mean
    vec4 squares = vec4(0.0);
    for (uint i = 0u; i < vec4_count; ++i) {
        const vec4 centered = times(x[source + i], by) - mean;
        rests += centered;
        squares += centered * centered;
    }
    const float rest = CENTERED * (sum_of(rests) / float(columns));
    const float known = scale_of(sum_of(squares) / float(columns) - rest * rest, eps, by);
    for (uint i = 0u; i < vec4_count; ++i) {
        const vec4 scale = gamma[gamma_offset / 4u + i];
        const vec4 shift = beta[beta_offset / 4u + i];
        result[target + i] = FINISHED(((times(x[source + i], by) - mean) - rest) * known);
    }
}

void main() {
    const uint vec4_count = columns / 4u;
    const uint step = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint item = gl_GlobalInvocationID.x; item * ROWS < rows; item += step) {
        // written out: SwiftShader reads an array in a loop as slowly as a buffer; where there are no more rows, the last again
        const uvec4 row = min(item * ROWS + uvec4(0u, 1u, 2u, 3u), uvec4(rows - 1u)) * vec4_count;
        const uvec4 source = x_offset / 4u + row;
        const uvec4 target = result_offset / 4u + row;
        const KNOWN a = about(source.x, vec4_count);
        const KNOWN b = about(source.y, vec4_count);
        const KNOWN c = about(source.z, vec4_count);
        const KNOWN d = about(source.w, vec4_count);
        for (uint i = 0u; i < vec4_count; ++i) {
            const vec4 scale = gamma[gamma_offset / 4u + i]; // read where it is used
            const vec4 shift = beta[beta_offset / 4u + i];
            result[target.x + i] = FINISHED(normed(x[source.x + i], a));
            result[target.y + i] = FINISHED(normed(x[source.y + i], b));
            result[target.z + i] = FINISHED(normed(x[source.z + i], c));
            result[target.w + i] = FINISHED(normed(x[source.w + i], d));
        }
        const bvec4 lost = bvec4(is_lost(SCALE(a)), is_lost(SCALE(b)), is_lost(SCALE(c)), is_lost(SCALE(d)));
        const uint lost_rows = any(lost) ? ROWS : 0u;
        for (uint i = 0u; i < lost_rows; ++i) norm_again(source[i], target[i], lost[i] ? vec4_count : 0u);
    }
}
