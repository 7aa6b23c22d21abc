// Attention for CPU drivers: an invocation works on four rows of q and eight keys at a time, and reads four words at once.
// The sums stay where the result will lie.
layout(local_size_x = 8, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint SOFTCAP = 0;
layout(constant_id = 4) const uint IS_BIAS = 0;
layout(constant_id = 5) const uint WHOLE = 1;
#include "attention.glsl"
const uint OWN_ROWS = 4u;

vec4 finish_four(vec4 products, int query, uint mask_at, uint key, uint end) {
    const float x = finish_score(products.x, query, mask_at, key, end);
    const float y = finish_score(products.y, query, mask_at, key + 1u, end);
    const float z = finish_score(products.z, query, mask_at, key + 2u, end);
    const float w = finish_score(products.w, query, mask_at, key + 3u, end);
    return vec4(x, y, z, w);
}

float largest_of(float largest, vec4 scores) {
    return larger(larger(larger(larger(largest, scores.x), scores.y), scores.z), scores.w);
}

vec4 weigh_four(vec4 scores, float largest) {
    return vec4(weigh(scores.x, largest), weigh(scores.y, largest), weigh(scores.z, largest), weigh(scores.w, largest));
}

float sum_of(vec4 x) { return (x.x + x.y) + (x.z + x.w); }

vec4 weighted(float weight, vec4 value) { return mix(weight * value, vec4(0.0), bvec4(weight == 0.0)); }

// Written out, as CPU drivers keep indexed arrays in memory and not in registers.
#define FOR_EACH_ROW(F) F(0, 0u) F(1, 1u) F(2, 2u) F(3, 3u)
#define FOR_EACH_KEY(F) F(0, 0u) F(1, 1u) F(2, 2u) F(3, 3u) F(4, 4u) F(5, 5u) F(6, 6u) F(7, 7u)
#define START_ROW(i, number) \
    const uint row##i = min(row + number, rows - 1u); \
    const int query##i = int(row##i % queries); \
    const uint mask_at##i = find_mask(batch, row##i); \
    const uint q##i = (q_offset + (batch * rows + row##i) * depth) / 4u; \
    const uint at##i = place_result(batch, row##i, part) / 4u; \
    float largest##i = -INFINITY; \
    float total##i = 0.0;
#define CLEAR_ROW(i, number) if (row + number < rows) result[at##i + c] = vec4(0.0);
#define START_SCORES(i, number) \
    vec4 left##i = vec4(0.0); \
    vec4 right##i = vec4(0.0);
#define PLACE_KEY(i, number) \
    const uint k##i = k_offset / 4u + (batch * keys + min(start + number, seen.y - 1u)) * (depth / 4u);
#define PLACE_VALUE(i, number) \
    const uint v##i = v_offset / 4u + (batch * keys + min(start + number, seen.y - 1u)) * (v_row / 4u);
#define MULTIPLY_ROW(i, number) \
    const vec4 part##i = q[q##i + d]; \
    left##i += part##i * left; \
    right##i += part##i * right;
#define FINISH_ROW(i, number) \
    left##i = finish_four(left##i, query##i, mask_at##i, start, seen.y); \
    right##i = finish_four(right##i, query##i, mask_at##i, start + 4u, seen.y); \
    const float before##i = largest##i; \
    largest##i = largest_of(largest_of(largest##i, left##i), right##i); \
    const float factor##i = shrink(before##i, largest##i); \
    left##i = weigh_four(left##i, largest##i); \
    right##i = weigh_four(right##i, largest##i); \
    total##i = total##i * factor##i + (sum_of(left##i) + sum_of(right##i));
#define READ_VALUE(i, number) const vec4 value##i = v[v##i + c];
#define ADD_ROW(i, number) \
    vec4 sum##i = weighted(factor##i, result[at##i + c]); \
    sum##i += weighted(left##i.x, value0) + weighted(left##i.y, value1); \
    sum##i += weighted(left##i.z, value2) + weighted(left##i.w, value3); \
    sum##i += weighted(right##i.x, value4) + weighted(right##i.y, value5); \
    sum##i += weighted(right##i.z, value6) + weighted(right##i.w, value7); \
    if (row + number < rows) result[at##i + c] = sum##i;
#define END_ROW(i, number) if (row + number < rows) result[at##i + c] = total##i == 0.0 ? vec4(0.0) : result[at##i + c] / total##i;
#define END_PART(i, number) if (row + number < rows) result[at##i + v_row / 4u] = vec4(largest##i, total##i, 0.0, 0.0);

void attend(uint batch, uint first, uint part) {
    const uvec2 seen = seen_keys(first, OWN_ROWS * gl_WorkGroupSize.x, part);
    const uint row = first + gl_LocalInvocationIndex * OWN_ROWS;
    if (row >= rows) return;
    FOR_EACH_ROW(START_ROW)
    for (uint c = 0u; c < v_row / 4u; ++c) {
        FOR_EACH_ROW(CLEAR_ROW)
    }
    for (uint start = seen.x; start < seen.y; start += 8u) {
        FOR_EACH_KEY(PLACE_KEY)
        FOR_EACH_ROW(START_SCORES)
        for (uint d = 0u; d < depth / 4u; ++d) {
            const mat4 left = mat4(k[k0 + d], k[k1 + d], k[k2 + d], k[k3 + d]);
            const mat4 right = mat4(k[k4 + d], k[k5 + d], k[k6 + d], k[k7 + d]);
            FOR_EACH_ROW(MULTIPLY_ROW)
        }
        FOR_EACH_ROW(FINISH_ROW)
        FOR_EACH_KEY(PLACE_VALUE)
        for (uint c = 0u; c < v_row / 4u; ++c) {
            FOR_EACH_KEY(READ_VALUE)
            FOR_EACH_ROW(ADD_ROW)
        }
    }
    if (WHOLE == 0u) {
        FOR_EACH_ROW(END_PART)
        return;
    }
    for (uint c = 0u; c < v_row / 4u; ++c) {
        FOR_EACH_ROW(END_ROW)
    }
}

void main() {
    for (uint part = gl_WorkGroupID.y; part < parts; part += gl_NumWorkGroups.y) {
        for (uint tile = first_tile + gl_WorkGroupID.x; tile < end_tile; tile += gl_NumWorkGroups.x) {
            attend(tile / tiles, tile % tiles * OWN_ROWS * gl_WorkGroupSize.x, part);
        }
    }
}
