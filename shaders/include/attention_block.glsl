// Attention for CPU drivers: an invocation works on ROWS rows of q and KEYS keys at a time, and reads four words at once.
// All lanes read the same keys and values; q, the sums and a block of weights are the invocation's own.
// Sums are added up without a look at weights that are 0; a row where that gives what is not finite is added up again, with care.
layout(local_size_x = 8, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint SOFTCAP = 0;
layout(constant_id = 4) const uint IS_BIAS = 0;
layout(constant_id = 5) const uint WHOLE = 1;
layout(constant_id = 6) const uint MOST_IN_FOURS = 8; // of depth and columns
layout(constant_id = 7) const uint NONE_SEEN = 0; // the bits of the result of a query that sees no key
#include "attention.glsl"
const uint FOURS = KEYS / 4u;

vec4 own_q[ROWS * MOST_IN_FOURS];
vec4 sums[ROWS * MOST_IN_FOURS];
vec4 weights[ROWS * FOURS];
float largest[ROWS];
float total[ROWS];
float factor[ROWS]; // by which the sums shrink at this block

// Written out, as CPU drivers keep indexed arrays in memory and not in registers.
#if ROWS == 8
#define FOR_EACH_ROW(F) F(0, 0u) F(1, 1u) F(2, 2u) F(3, 3u) F(4, 4u) F(5, 5u) F(6, 6u) F(7, 7u)
#else
#define FOR_EACH_ROW(F) F(0, 0u) F(1, 1u) F(2, 2u) F(3, 3u)
#endif
// Four keys at a time, so that a compiler need not hold them all. F(which four, first of them, a macro for each row)
#if KEYS == 12
#define FOR_EACH_FOUR(F, ROW) F(0u, ROW##_0) F(4u, ROW##_1) F(8u, ROW##_2)
#else
#define FOR_EACH_FOUR(F, ROW) F(0u, ROW##_0) F(4u, ROW##_1)
#endif
#define PLACE(from, stride, key) (from + min(start + key, end - 1u) * (stride / 4u))
#define START_SCORES(i, number) vec4 scores##i##_0 = vec4(0.0), scores##i##_1 = vec4(0.0), scores##i##_2 = vec4(0.0);
#define READ_ROW(i, number) const vec4 q##i = own_q[d * ROWS + number];
#define MULTIPLY_0(i, number) scores##i##_0 += q##i * four;
#define MULTIPLY_1(i, number) scores##i##_1 += q##i * four;
#define MULTIPLY_2(i, number) scores##i##_2 += q##i * four;
#define READ_KEYS(key, ROW) { \
    const mat4 four = mat4(k[PLACE(k_at, k_row, key) + d], k[PLACE(k_at, k_row, key + 1u) + d], \
        k[PLACE(k_at, k_row, key + 2u) + d], k[PLACE(k_at, k_row, key + 3u) + d]); \
    FOR_EACH_ROW(ROW) \
}
#define KEEP_0(i, number) weights[number * FOURS] = scores##i##_0;
#define KEEP_1(i, number) weights[number * FOURS + 1u] = scores##i##_1;
#define KEEP_2(i, number) weights[number * FOURS + 2u] = scores##i##_2;
#define KEEP(key, ROW) FOR_EACH_ROW(ROW)
#define START_SUM(i, number) vec4 sum##i = sums[c * ROWS + number] * factor[number];
#define ADD_FOUR(weight) four * weight;
#define ADD_0(i, number) sum##i += ADD_FOUR(weights[number * FOURS])
#define ADD_1(i, number) sum##i += ADD_FOUR(weights[number * FOURS + 1u])
#define ADD_2(i, number) sum##i += ADD_FOUR(weights[number * FOURS + 2u])
#define READ_VALUES(key, ROW) { \
    const mat4 four = mat4(v[PLACE(v_at, v_row, key) + c], v[PLACE(v_at, v_row, key + 1u) + c], \
        v[PLACE(v_at, v_row, key + 2u) + c], v[PLACE(v_at, v_row, key + 3u) + c]); \
    FOR_EACH_ROW(ROW) \
}
#define KEEP_SUM(i, number) sums[c * ROWS + number] = sum##i;

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
        FOR_EACH_ROW(START_SCORES)
        for (uint d = 0u; d < depth / 4u; ++d) {
            FOR_EACH_ROW(READ_ROW)
            FOR_EACH_FOUR(READ_KEYS, MULTIPLY)
        }
        FOR_EACH_FOUR(KEEP, KEEP)
    }
    for (uint i = 0u; i < ROWS; ++i) {
        const uint row = min(first + i, rows - 1u);
        const int query = int(row % queries);
        const int last = last_of(query, end);
        const uint mask_at = find_mask(batch, row);
        vec4 four = vec4(largest[i]);
        for (uint j = 0u; j < FOURS; ++j) {
            const vec4 scores = finish_four(weights[i * FOURS + j], query, last, mask_at, start + 4u * j, end);
            weights[i * FOURS + j] = scores;
            four = larger_four(four, scores);
        }
        const vec2 two = mix(four.xy, four.zw, greaterThan(four.zw, four.xy));
        const float now = two.x < two.y ? two.y : two.x;
        const float base = base_of(now);
        const float shrunk = weigh_four(vec4(largest[i]), base).x;
        vec4 added = vec4(0.0);
        for (uint j = 0u; j < FOURS; ++j) {
            const vec4 here = weigh_four(weights[i * FOURS + j], base);
            weights[i * FOURS + j] = here;
            added += here;
        }
        largest[i] = now;
        factor[i] = shrunk;
        total[i] = total[i] * shrunk + sum_of(added);
    }
    const uint v_at = place_keys(v_offset, batch, v_row, v_head) / 4u;
    for (uint c = 0u; c < columns / 4u; ++c) {
        FOR_EACH_ROW(START_SUM)
        FOR_EACH_FOUR(READ_VALUES, ADD)
        FOR_EACH_ROW(KEEP_SUM)
    }
}

vec4 weighted(float weight, vec4 value) { return mix(weight * value, vec4(0.0), bvec4(weight == 0.0)); }

// The sums of one row once more, by the largest score that is known by now, without what has weight 0.
void add_carefully(uint batch, uint i, uint first, uvec2 seen) {
    const uint row = min(first + i, rows - 1u);
    const int query = int(row % queries);
    const uint end = seen.y;
    for (uint c = 0u; c < columns / 4u; ++c) sums[c * ROWS + i] = vec4(0.0);
    for (uint start = seen.x; start < end; start += 4u) {
        const uvec4 key = min(start + uvec4(0u, 1u, 2u, 3u), uvec4(end - 1u));
        const uvec4 in_k = place_keys(k_offset, batch, k_row, k_head) / 4u + key * (k_row / 4u);
        vec4 scores = vec4(0.0);
        for (uint d = 0u; d < depth / 4u; ++d) {
            scores += own_q[d * ROWS + i] * mat4(k[in_k.x + d], k[in_k.y + d], k[in_k.z + d], k[in_k.w + d]);
        }
        scores = finish_four(scores, query, last_of(query, end), find_mask(batch, row), start, end);
        const vec4 by = weigh_four(scores, base_of(largest[i]));
        const uvec4 in_v = place_keys(v_offset, batch, v_row, v_head) / 4u + key * (v_row / 4u);
        for (uint c = 0u; c < columns / 4u; ++c) {
            const vec4 sum = weighted(by.x, v[in_v.x + c]) + weighted(by.y, v[in_v.y + c]);
            sums[c * ROWS + i] += sum + (weighted(by.z, v[in_v.z + c]) + weighted(by.w, v[in_v.w + c]));
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
        uvec4 exponents = uvec4(0u);
        for (uint c = 0u; c < columns / 4u; ++c) exponents = max(exponents, floatBitsToUint(sums[c * ROWS + i]) & 0x7f800000u);
        if (any(equal(exponents, uvec4(0x7f800000u)))) add_carefully(batch, i, first, seen);
        const uint at = place_result(batch, first + i, part) / 4u;
        const float whole = WHOLE == 0u ? 1.0 : total[i];
        for (uint c = 0u; c < columns / 4u; ++c) result[at + c] = whole == 0.0 ? vec4(uintBitsToFloat(NONE_SEEN)) : sums[c * ROWS + i] / whole;
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
