// Attention for CPU drivers: an invocation works on ROWS rows of q and sixteen keys at a time, and reads four words at once.
// All lanes read the same keys and values; q, the sums and a block of weights are the invocation's own.
// Sums are added up without a look at weights that are 0; a row where that gives what is not finite is added up again, with care.
layout(local_size_x = 8, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint SOFTCAP = 0;
layout(constant_id = 4) const uint IS_BIAS = 0;
layout(constant_id = 5) const uint WHOLE = 1;
layout(constant_id = 6) const uint MOST_IN_FOURS = 8; // of depth and columns
#include "attention.glsl"
const uint KEYS = 16u;

vec4 own_q[ROWS * MOST_IN_FOURS];
vec4 sums[ROWS * MOST_IN_FOURS];
vec4 weights[ROWS * 4u];
float largest[ROWS];
float total[ROWS];
float factor[ROWS]; // by which the sums shrink at this block

// Written out, as CPU drivers keep indexed arrays in memory and not in registers.
#if ROWS == 8
#define FOR_EACH_ROW(F) F(0, 0u) F(1, 1u) F(2, 2u) F(3, 3u) F(4, 4u) F(5, 5u) F(6, 6u) F(7, 7u)
#else
#define FOR_EACH_ROW(F) F(0, 0u) F(1, 1u) F(2, 2u) F(3, 3u)
#endif
#define FOR_EACH_KEY(F) F(0, 0u) F(1, 1u) F(2, 2u) F(3, 3u) F(4, 4u) F(5, 5u) F(6, 6u) F(7, 7u) F(8, 8u) F(9, 9u) F(10, 10u) F(11, 11u) F(12, 12u) F(13, 13u) F(14, 14u) F(15, 15u)
#define PLACE_KEY(i, number) const uint at##i = k_at + min(start + number, end - 1u) * (k_row / 4u);
#define PLACE_VALUE(i, number) const uint at##i = v_at + min(start + number, end - 1u) * (v_row / 4u);
#define START_SCORES(i, number) vec4 scores##i##_0 = vec4(0.0), scores##i##_1 = vec4(0.0), scores##i##_2 = vec4(0.0), scores##i##_3 = vec4(0.0);
#define READ_KEY(i, number) const vec4 key##i = k[at##i + d];
#define FOUR_KEYS(a, b, c, d) mat4(key##a, key##b, key##c, key##d)
#define MULTIPLY_ROW(i, number) \
    const vec4 q##i = own_q[d * ROWS + number]; \
    scores##i##_0 += q##i * FOUR_KEYS(0, 1, 2, 3); \
    scores##i##_1 += q##i * FOUR_KEYS(4, 5, 6, 7); \
    scores##i##_2 += q##i * FOUR_KEYS(8, 9, 10, 11); \
    scores##i##_3 += q##i * FOUR_KEYS(12, 13, 14, 15);
#define KEEP_SCORES(i, number) \
    weights[number * 4u] = scores##i##_0; \
    weights[number * 4u + 1u] = scores##i##_1; \
    weights[number * 4u + 2u] = scores##i##_2; \
    weights[number * 4u + 3u] = scores##i##_3;
#define READ_VALUE(i, number) const vec4 value##i = v[at##i + c];
#define ADD_FOUR(weight, a, b, c, d) weight.x * value##a + weight.y * value##b + weight.z * value##c + weight.w * value##d
#define ADD_ROW(i, number) \
    vec4 sum##i = sums[c * ROWS + number] * factor[number]; \
    sum##i += ADD_FOUR(weights[number * 4u], 0, 1, 2, 3); \
    sum##i += ADD_FOUR(weights[number * 4u + 1u], 4, 5, 6, 7); \
    sum##i += ADD_FOUR(weights[number * 4u + 2u], 8, 9, 10, 11); \
    sum##i += ADD_FOUR(weights[number * 4u + 3u], 12, 13, 14, 15); \
    sums[c * ROWS + number] = sum##i;

// As finish_score, for four keys. last: the last key that the row sees.
vec4 finish_four(vec4 products, int query, int last, uint mask_at, uint key, uint end) {
    vec4 scores = products * scale;
    if (SOFTCAP != 0u) {
        const vec4 part = scores / softcap;
        scores = softcap * vec4(plain_tanh(part.x), plain_tanh(part.y), plain_tanh(part.z), plain_tanh(part.w));
    }
    const ivec4 keys_here = int(key) + ivec4(0, 1, 2, 3);
#ifdef MASKED
    const uvec4 at = mask_at + min(uvec4(keys_here), uvec4(end - 1u)) * mask_strides[3];
    const uvec4 words = uvec4(mask[at.x], mask[at.y], mask[at.z], mask[at.w]);
    if (IS_BIAS != 0u) scores += uintBitsToFloat(words);
    scores = mix(scores, vec4(-INFINITY), equal(words, uvec4(IS_BIAS != 0u ? 0xff800000u : 0u)));
#endif
    scores = mix(scores, vec4(-INFINITY), lessThan(keys_here, ivec4(query + first_seen)));
    return mix(scores, vec4(-INFINITY), greaterThan(keys_here, ivec4(last)));
}

vec4 larger_four(vec4 largest, vec4 scores) { return mix(largest, scores, greaterThan(scores, largest)); }

// exp(scores - base) for a finite base; 0 for -infinity, NaN for NaN and for +infinity.
vec4 weigh_four(vec4 scores, float base) {
    vec4 x = (scores - base) * 1.44269504;
    x = mix(x, vec4(-127.0), lessThan(x, vec4(-127.0)));
    const vec4 whole = floor(x + 0.5);
    const vec4 f = (x - whole) * 0.69314718;
    const vec4 p = 1.0 + f * (1.0 + f * (0.5 + f * (0.16666667 + f * (0.041666668 + f * (0.008333334 + f * 0.0013888889)))));
    return p * intBitsToFloat((ivec4(whole) + 127) << 23);
}

float sum_of(vec4 x) { return (x.x + x.y) + (x.z + x.w); }

// Where all keys so far are hidden, any base will do.
float base_of(float largest) { return largest == -INFINITY ? 0.0 : largest; }

int last_of(int query, uint end) { return min(query + last_seen, int(end) - 1); }

void add_block(uint batch, uint first, uint start, uint end) {
    {
        const uint k_at = place_keys(k_offset, batch, k_row, k_head) / 4u;
        FOR_EACH_KEY(PLACE_KEY)
        FOR_EACH_ROW(START_SCORES)
        for (uint d = 0u; d < depth / 4u; ++d) {
            FOR_EACH_KEY(READ_KEY)
            FOR_EACH_ROW(MULTIPLY_ROW)
        }
        FOR_EACH_ROW(KEEP_SCORES)
    }
    for (uint i = 0u; i < ROWS; ++i) {
        const uint row = min(first + i, rows - 1u);
        const int query = int(row % queries);
        const int last = last_of(query, end);
        const uint mask_at = find_mask(batch, row);
        const vec4 a = finish_four(weights[i * 4u], query, last, mask_at, start, end);
        const vec4 b = finish_four(weights[i * 4u + 1u], query, last, mask_at, start + 4u, end);
        const vec4 c = finish_four(weights[i * 4u + 2u], query, last, mask_at, start + 8u, end);
        const vec4 d = finish_four(weights[i * 4u + 3u], query, last, mask_at, start + 12u, end);
        const float before = largest[i];
        const vec4 four = larger_four(larger_four(larger_four(larger_four(vec4(before), a), b), c), d);
        const vec2 two = mix(four.xy, four.zw, greaterThan(four.zw, four.xy));
        const float now = two.x < two.y ? two.y : two.x;
        const float base = base_of(now);
        const float shrunk = weigh_four(vec4(before), base).x;
        largest[i] = now;
        factor[i] = shrunk;
        weights[i * 4u] = weigh_four(a, base);
        weights[i * 4u + 1u] = weigh_four(b, base);
        weights[i * 4u + 2u] = weigh_four(c, base);
        weights[i * 4u + 3u] = weigh_four(d, base);
        total[i] = total[i] * shrunk + sum_of((weights[i * 4u] + weights[i * 4u + 1u]) + (weights[i * 4u + 2u] + weights[i * 4u + 3u]));
    }
    const uint v_at = place_keys(v_offset, batch, v_row, v_head) / 4u;
    FOR_EACH_KEY(PLACE_VALUE)
    for (uint c = 0u; c < columns / 4u; ++c) {
        FOR_EACH_KEY(READ_VALUE)
        FOR_EACH_ROW(ADD_ROW)
    }
}


vec4 weighted(float weight, vec4 value) { return mix(weight * value, vec4(0.0), bvec4(weight == 0.0)); }
#define ADD_CAREFULLY(weight, a, b, c, d) (weighted(weight.x, value##a) + weighted(weight.y, value##b)) + (weighted(weight.z, value##c) + weighted(weight.w, value##d))

// The sums of one row once more, by the largest score that is known by now, without what has weight 0.
void add_carefully(uint batch, uint i, uint first, uvec2 seen) {
    const uint row = min(first + i, rows - 1u);
    const int query = int(row % queries);
    const int last = last_of(query, seen.y);
    const uint mask_at = find_mask(batch, row);
    const uint k_at = place_keys(k_offset, batch, k_row, k_head) / 4u;
    const uint v_at = place_keys(v_offset, batch, v_row, v_head) / 4u;
    const uint end = seen.y;
    const float base = base_of(largest[i]);
    for (uint c = 0u; c < columns / 4u; ++c) sums[c * ROWS + i] = vec4(0.0);
    for (uint start = seen.x; start < end; start += KEYS) {
        vec4 weights0 = vec4(0.0), weights1 = vec4(0.0), weights2 = vec4(0.0), weights3 = vec4(0.0);
        {
            FOR_EACH_KEY(PLACE_KEY)
            for (uint d = 0u; d < depth / 4u; ++d) {
                FOR_EACH_KEY(READ_KEY)
                const vec4 part = own_q[d * ROWS + i];
                weights0 += part * FOUR_KEYS(0, 1, 2, 3);
                weights1 += part * FOUR_KEYS(4, 5, 6, 7);
                weights2 += part * FOUR_KEYS(8, 9, 10, 11);
                weights3 += part * FOUR_KEYS(12, 13, 14, 15);
            }
        }
        weights0 = weigh_four(finish_four(weights0, query, last, mask_at, start, end), base);
        weights1 = weigh_four(finish_four(weights1, query, last, mask_at, start + 4u, end), base);
        weights2 = weigh_four(finish_four(weights2, query, last, mask_at, start + 8u, end), base);
        weights3 = weigh_four(finish_four(weights3, query, last, mask_at, start + 12u, end), base);
        FOR_EACH_KEY(PLACE_VALUE)
        for (uint c = 0u; c < columns / 4u; ++c) {
            FOR_EACH_KEY(READ_VALUE)
            vec4 sum = ADD_CAREFULLY(weights0, 0, 1, 2, 3) + ADD_CAREFULLY(weights1, 4, 5, 6, 7);
            sum += ADD_CAREFULLY(weights2, 8, 9, 10, 11) + ADD_CAREFULLY(weights3, 12, 13, 14, 15);
            sums[c * ROWS + i] += sum;
        }
    }
}

void attend(uint batch, uint group_first, uint part) {
    const uvec2 seen = seen_keys(group_first, ROWS * gl_WorkGroupSize.x, part);
    const uint first = group_first + gl_LocalInvocationIndex * ROWS;
    if (first >= rows) return;
    for (uint i = 0u; i < ROWS; ++i) {
        largest[i] = -INFINITY;
        total[i] = 0.0;
        const uint at = place_q(batch, min(first + i, rows - 1u)) / 4u;
        for (uint d = 0u; d < depth / 4u; ++d) own_q[d * ROWS + i] = q[at + d];
        for (uint c = 0u; c < columns / 4u; ++c) sums[c * ROWS + i] = vec4(0.0);
    }
    for (uint start = seen.x; start < seen.y; start += KEYS) add_block(batch, first, start, seen.y);
    for (uint i = 0u; i < ROWS && first + i < rows; ++i) {
        // x - x is 0 where x is finite, else NaN
        vec4 odd = vec4(0.0);
        for (uint c = 0u; c < columns / 4u; ++c) odd += sums[c * ROWS + i] - sums[c * ROWS + i];
        if (is_nan(sum_of(odd))) add_carefully(batch, i, first, seen);
        const uint at = place_result(batch, first + i, part) / 4u;
        const float whole = WHOLE == 0u ? 1.0 : total[i];
        for (uint c = 0u; c < columns / 4u; ++c) result[at + c] = whole == 0.0 ? vec4(0.0) : sums[c * ROWS + i] / whole;
        if (WHOLE == 0u) result[place_state(at * 4u) / 4u] = vec4(largest[i], total[i], 0.0, 0.0);
    }
}

void main() {
    const uint tiles = tiles_of(ROWS * gl_WorkGroupSize.x);
    for (uint part = gl_WorkGroupID.y; part < parts; part += gl_NumWorkGroups.y) {
        for (uint tile = first_tile + gl_WorkGroupID.x; tile < end_tile; tile += gl_NumWorkGroups.x) {
            attend(tile / tiles, tile % tiles * ROWS * gl_WorkGroupSize.x, part);
        }
    }
}
