#version 450
// result[m, n] = sum over k of x[m, k] * w[n, k] for few rows m, of up to three weights w of few bits (quant_block.glsl) whose columns stand
// beside each other; or of two, with a GATE: activation(x W1) * (x W2), of as many columns as one of them. x is a, or with NORMED
// a / sqrt(mean of a^2 over the row + eps) * scale, scale: (k).
// One workgroup computes some columns of one row, of one weight or of both, as quant_gemv.glsl says. For GPUs.
// Source: Zhang and Sennrich, Root mean square layer normalization, 2019.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 32, local_size_y = 4, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint NORMED = 0;
layout(constant_id = 4) const uint GATE = 0;
layout(constant_id = 5) const uint WEIGHTS = 1;
const uint SILU = 1u, GELU = 2u; // 3: GELU by tanh
const uint ROWS = 1u;
#include "load_words.glsl"
#include "quant_formats.glsl"

layout(set = 0, binding = 0) readonly buffer A { vec4 a[]; };
layout(set = 0, binding = 1) readonly buffer Scale { vec4 scale[]; };
layout(set = 0, binding = 2) readonly buffer B { LOAD_OF_B b[]; };
layout(set = 0, binding = 3) readonly buffer Second { LOAD_OF_B second[]; };
layout(set = 0, binding = 4) readonly buffer Third { LOAD_OF_B third[]; };
layout(set = 0, binding = 5) writeonly buffer Result { float result[]; };
layout(set = 0, binding = 6) readonly buffer Residual { uint residual[]; } residual_buffer;
VIEWS(2, b)
VIEWS(3, second)
VIEWS(4, third)
layout(push_constant) uniform Push {
    uint a_offset;
    uint scale_offset;
    uint b_offset;
    uint second_offset;
    uint third_offset;
    uint result_offset;
    uint residual_offset;
    uint m;
    uint n;
    uint k;
    uint ends[2]; // the columns where the first and the second weight end, without a gate
    uint b_column; // words of a row of a weight
    float eps;
};
#include "norm_range.glsl"
#include "epilogue.glsl"

uint weight; // the one that is read, the same for all of a group
LOAD_OF_B unit_of_b(uint unit) {
    if (WEIGHTS > 1u && weight == 1u) return second[unit];
    if (WEIGHTS > 2u && weight == 2u) return third[unit];
    return b[unit];
}
#ifdef HAS_PAIRS
PAIR pair_of_b(uint pair) {
    if (WEIGHTS > 1u && weight == 1u) return second_pairs[pair];
    if (WEIGHTS > 2u && weight == 2u) return third_pairs[pair];
    return b_pairs[pair];
}
#endif
uint word_of_b(uint at) {
    if (WEIGHTS > 1u && weight == 1u) return second_words[at];
    if (WEIGHTS > 2u && weight == 2u) return third_words[at];
    return b_words[at];
}
#define UNIT_OF_B(unit) unit_of_b(unit)
#define PAIR_OF_B(pair) pair_of_b(pair)
#define WORD_OF_B(at) word_of_b(at)
#include "quant_block.glsl"

uint row_at; // vec4s before the row in a
float by; // what a is multiplied by first
float squares; // of what this invocation has seen of it
vec4 left_of(uint i) {
    const vec4 own = a[a_offset / 4u + row_at + i];
    if (NORMED == 0u) return own;
    const vec4 x = times(own, by);
    squares += dot(x, x);
    return x * scale[scale_offset / 4u + i];
}
#define LEFT(i, q) left_of(number * 8u + (q))
#include "quant_gemv.glsl"
shared float squares_of[VEC4S_PER_GROUP * SLICES];
shared uint largest_of[VEC4S_PER_GROUP * SLICES];

// The sums of all slices for slice 0, and in `squares` those of the whole row for all.
vec4 met(vec4 sum, uint own, uint slice) {
    const uint here = slice * VEC4S_PER_GROUP + own;
    barrier(); // what was there before has been read
    slices[here] = sum;
    if (NORMED != 0u) squares_of[here] = squares;
    for (uint apart = SLICES / 2u; apart > 0u; apart /= 2u) {
        barrier();
        if (slice < apart) {
            slices[here] += slices[here + apart * VEC4S_PER_GROUP];
            if (NORMED != 0u) squares_of[here] += squares_of[here + apart * VEC4S_PER_GROUP];
        }
    }
    barrier();
    if (NORMED != 0u) squares = squares_of[own];
    return slices[own];
}

// The word of the largest magnitude of the row.
uint largest_of_row(uint own, uint slice) {
    const uint here = slice * VEC4S_PER_GROUP + own;
    uint largest = 0u;
    for (uint i = slice; i < k / 4u; i += SLICES) largest = max(largest, largest_word(a[a_offset / 4u + row_at + i]));
    largest_of[here] = largest;
    for (uint apart = SLICES / 2u; apart > 0u; apart /= 2u) {
        barrier();
        if (slice < apart) largest_of[here] = max(largest_of[here], largest_of[here + apart * VEC4S_PER_GROUP]);
    }
    barrier();
    return largest_of[own];
}

// Four results of a row by the weight that is read, for all slices. from: where it starts. column, last: of it.
vec4 dot_vec4(uint from, uint column, uint last, uint own, uint slice) {
    by = 1.0;
    vec4 sum;
    for (uint pass = 0u; pass < 2u; ++pass) { // again where squares left their range: all slices know that
        vec4 sums[ROWS];
        sums[0] = vec4(0.0);
        squares = 0.0;
        for (uint number = slice; number < k / 32u; number += SLICES) {
            ADD_RUN(from, column, last)
        }
        sum = met(sums[0], own, slice);
        if (NORMED == 0u) break;
        const float variance = squares / float(k);
        const float rate = pass == 0u ? rate_of(variance, eps) : scale_of(variance, eps, by);
        sum *= rate;
        if (!is_lost(rate) || pass == 1u) break;
        by = power_for(largest_of_row(own, slice), eps);
    }
    return sum;
}

float activation(float x) { return GATE == SILU ? x * sigmoid(x) : GATE == GELU ? gelu_erf(x) : gelu_tanh(x); }

void main() {
    const uint own = gl_LocalInvocationID.y, slice = gl_LocalInvocationID.x;
    for (uint row = gl_WorkGroupID.y; row < m; row += gl_NumWorkGroups.y) {
        row_at = row * k / 4u;
        for (uint first = gl_WorkGroupID.x * VEC4S_PER_GROUP; first * 4u < n; first += gl_NumWorkGroups.x * VEC4S_PER_GROUP) {
            const uint column = (first + own) * 4u;
            vec4 four;
            if (GATE != 0u) {
                vec4 parts[2];
                for (weight = 0u; weight < 2u; ++weight) {
                    parts[weight] = dot_vec4(weight == 0u ? b_offset : second_offset, column, n - 1u, own, slice);
                }
                four = vec4(activation(parts[0].x), activation(parts[0].y), activation(parts[0].z), activation(parts[0].w)) * parts[1];
            } else {
                weight = WEIGHTS == 1u || first * 4u < ends[0] ? 0u : WEIGHTS == 2u || first * 4u < ends[1] ? 1u : 2u;
                const uint from = weight == 0u ? b_offset : weight == 1u ? second_offset : third_offset;
                const uint begin = weight == 0u ? 0u : ends[weight - 1u];
                const uint end = weight + 1u == WEIGHTS ? n : ends[weight];
                four = dot_vec4(from, column - begin, end - begin - 1u, own, slice);
            }
            if (slice == 0u && column < n) {
                const uvec4 at = result_offset + row * n + column + uvec4(0u, 1u, 2u, 3u);
                four = epilogue(four, at);
                result[at.x] = four.x;
                result[at.y] = four.y;
                result[at.z] = four.z;
                result[at.w] = four.w;
            }
        }
    }
}
