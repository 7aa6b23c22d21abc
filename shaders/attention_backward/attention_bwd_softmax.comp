#version 450
// weight = softmax(s) along rows, s = softcap tanh(score scale / softcap) + mask; slope = weight (slope - sum of weight slope) by that
// of s. scores, grad_scores: (rows, keys), from one row of all heads on, overwritten by weights and their grad_scores; mask: strided.
// One invocation or some invocations of a workgroup compute one row.
// Source: Dao, FlashAttention-2, 2023; Milakov and Gimelshein, Online normalizer calculation for softmax, 2018.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 5) const uint SOFTCAP = 0;
layout(constant_id = 6) const uint MASKED = 0; // 1: by a mask of bools, 2: by one that is added
#include "float_math.glsl"
#include "exp_quad.glsl"
#include "load_words.glsl"
#include "vec4_rows.glsl"
layout(set = 0, binding = 0) buffer Scores { vec4 scores[]; };
layout(set = 0, binding = 1) buffer GradScores { vec4 grad_scores[]; };
layout(set = 0, binding = 2) readonly buffer Mask { uint mask[]; };
layout(push_constant) uniform Push {
    uint scores_offset;
    uint grad_scores_offset;
    uint mask_offset;
    uint first_row; // of all heads, one behind the other
    uint rows;
    uint queries;
    uint keys;
    uint heads; // of q, in one example
    uint mask_strides[4];
    int first_visible; // query i sees the keys i + first_visible .. i + last_visible
    int last_visible;
    float scale;
    float softcap;
};

vec4 larger(vec4 left, vec4 right) { return mix(right, left, lessThan(right, left)); }
float larger(float left, float right) { return mix(right, left, right < left); }
float add(float left, float right) { return left + right; }
DEFINE_ROW_TREE(row_largest, float, larger)
DEFINE_ROW_TREE(row_sum, float, add)

uint place_mask(uint row) {
    const uint all_heads = row / queries;
    return mask_offset + all_heads / heads * mask_strides[0] + all_heads % heads * mask_strides[1] + row % queries * mask_strides[2];
}

// Four scores in place of products of q and k, from a key on; that of a hidden key is -infinity. Returns what becomes of four
// grad_scores. SHAPED, with a soft cap or a mask, has modules of its own, as SwiftShader goes through both sides of a branch.
vec4 finish(inout vec4 score, int query, uint mask_at, uint key) {
    vec4 slope = vec4(scale);
    score *= scale;
    const ivec4 here = int(key) + ivec4(0, 1, 2, 3);
#ifdef SHAPED
    if (SOFTCAP != 0u) {
        const vec4 x = score / softcap;
        const vec4 bent = vec4(safe_tanh(x.x), safe_tanh(x.y), safe_tanh(x.z), safe_tanh(x.w));
        score = softcap * bent;
        slope -= slope * bent * bent;
    }
    if (MASKED != 0u) {
        const uvec4 at = mask_at + min(uvec4(here), uvec4(keys - 1u)) * mask_strides[3];
        const uvec4 words = uvec4(mask[at.x], mask[at.y], mask[at.z], mask[at.w]);
        if (MASKED == 2u) score += uintBitsToFloat(words);
        score = mix(score, vec4(-INFINITY), equal(words, uvec4(MASKED == 2u ? 0xff800000u : 0u)));
    }
#endif
    score = mix(score, vec4(-INFINITY), lessThan(here, ivec4(query + first_visible)));
    score = mix(score, vec4(-INFINITY), greaterThan(here, ivec4(query + last_visible)));
    return slope;
}

vec4 finite(vec4 largest) { return mix(largest, vec4(0.0), equal(largest, vec4(-INFINITY))); }

// Takes four scores into the largest ones, and into the sums of weights and of weights times grad_scores, which are held against these.
// GradScores are counted from that of the largest score: where it has nearly all weight, their mean keeps its digits.
void take(vec4 score, vec4 product, inout vec4 most, inout vec4 total, inout vec4 along, inout vec4 pivot) {
    const vec4 now = larger(most, score);
    const vec4 around = mix(product, pivot, lessThan(score, most));
    const vec4 shrunk = exp_of_negative(most - finite(now));
    const vec4 weight = exp_of_negative(score - finite(now));
    along = (along + total * (pivot - around)) * shrunk + mix(weight * (product - around), vec4(0.0), equal(weight, vec4(0.0)));
    total = total * shrunk + weight;
    most = now;
    pivot = around;
}

// Four weights, and what becomes of four grad_scores.
vec4 weigh(vec4 score, float largest, float by) {
    return mix(exp_of_negative(score - largest) * by, vec4(0.0), equal(score, vec4(-INFINITY)));
}
vec4 slope_of(vec4 product, float mean, vec4 weight, vec4 slope) {
    return mix(weight * (product - mean) * slope, vec4(0.0), equal(weight, vec4(0.0)));
}

void main() {
    const uint step = gl_NumWorkGroups.x * rows_of_group();
    for (uint first = gl_WorkGroupID.x * rows_of_group(); first < rows; first += step) {
        const uint number = first + row_in_group();
        const bool there = number < rows;
        const uint at = min(number, rows - 1u) * keys;
        const uint row = first_row + min(number, rows - 1u);
        const int query = int(row % queries);
        const uint mask_at = place_mask(row);
        const uint vec4_count = there && keys % 4u == 0u ? keys / 4u : 0u; // rows start at a vec4 then
        const uint edges = there && keys % 4u != 0u ? keys : 0u;
        const uint from_score = (scores_offset + at) / 4u;
        const uint from_slope = (grad_scores_offset + at) / 4u;
        vec4 most = vec4(-INFINITY);
        vec4 total = vec4(0.0);
        vec4 along = vec4(0.0);
        vec4 pivots = vec4(0.0);
        for (uint i = lane(); i < vec4_count; i += LANES_PER_ROW) {
            vec4 score = scores[from_score + i];
            finish(score, query, mask_at, 4u * i);
            take(score, grad_scores[from_slope + i], most, total, along, pivots);
        }
        for (uint i = lane(); i < edges; i += LANES_PER_ROW) {
            vec4 score = vec4(WORD(scores, scores_offset + at + i));
            finish(score, query, mask_at, i);
            take(vec4(score.x, vec3(-INFINITY)), vec4(WORD(grad_scores, grad_scores_offset + at + i)), most, total, along, pivots);
        }
        const float largest = finite(vec4(row_largest(larger(larger(most.x, most.y), larger(most.z, most.w))))).x;
        const vec4 share = exp_of_negative(most - largest);
        const float whole = row_sum(dot(total, share));
        const float by = whole == 0.0 ? 0.0 : 1.0 / whole;
        const vec4 known = mix(vec4(-INFINITY), pivots, equal(most, vec4(largest)));
        const float pivot = finite(vec4(row_largest(larger(larger(known.x, known.y), larger(known.z, known.w))))).x;
        const float mean = row_sum(dot(along + total * (pivots - pivot), share)) * by;
        for (uint i = lane(); i < vec4_count; i += LANES_PER_ROW) {
            vec4 score = scores[from_score + i];
            const vec4 slope = finish(score, query, mask_at, 4u * i);
            const vec4 weight = weigh(score, largest, by);
            scores[from_score + i] = weight;
            grad_scores[from_slope + i] = slope_of(grad_scores[from_slope + i] - pivot, mean, weight, slope);
        }
        for (uint i = lane(); i < edges; i += LANES_PER_ROW) {
            vec4 score = vec4(WORD(scores, scores_offset + at + i));
            const vec4 slope = finish(score, query, mask_at, i);
            const vec4 weight = weigh(score, largest, by);
            const vec4 product = vec4(WORD(grad_scores, grad_scores_offset + at + i));
            WORD(scores, scores_offset + at + i) = weight.x;
            WORD(grad_scores, grad_scores_offset + at + i) = slope_of(product - pivot, mean, weight, slope).x;
        }
    }
}
