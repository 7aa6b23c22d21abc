// Attention for CPU drivers with subgroups. One workgroup is one subgroup of SUBGROUP_SIZE; it works on ROWS rows of q, SUBGROUP_SIZE * 4 keys at a
// time, and SUBGROUP_SIZE * 4 * VEC4S_PER_LANE columns. Each lane loads other values of q, k and v, and shuffles hand them to the rest: a lane has
// four keys of the scores of all rows, then four columns, VEC4S_PER_LANE times, of their sums. Of what a row has one of, lane l holds that
// of row l, or of row SUBGROUP_SIZE + l.
// SHAPED: scores have a soft cap, or keys are hidden from a query by their place or by a mask; else all rows see all keys.
// Sums are added up without a look at weights that are 0: what is not finite is left to attention_fallback.
#include "attention_cpu.glsl"
#include "matmul_subgroup.glsl"

const uint KEYS = SUBGROUP_SIZE * 4;
#if ROWS == 1
#define EACH_LOAD(F) F(0)
#define EACH_ROW(F) F(0, 0, 0, x)
#elif ROWS == 4
#define EACH_LOAD(F) F(0)
#define EACH_ROW(F) AND_LANE(F, 0)
#elif ROWS == SUBGROUP_SIZE
#define EACH_LOAD(F) F(0)
#define EACH_ROW(F) EACH_LANE(F, 0)
#elif ROWS == 2 * SUBGROUP_SIZE
#define EACH_LOAD(F) F(0) F(1)
#define EACH_ROW(F) EACH_LANE(F, 0) EACH_LANE(F, 1)
#else
#define EACH_LOAD(F) F(0) F(1) F(2) F(3)
#define EACH_ROW(F) EACH_LANE(F, 0) EACH_LANE(F, 1) EACH_LANE(F, 2) EACH_LANE(F, 3)
#endif
#if VEC4S_PER_LANE == 1
#define EACH_VEC4(F, i, lane) F(0, i, lane)
#elif VEC4S_PER_LANE == 2
#define EACH_VEC4(F, i, lane) F(0, i, lane) F(1, i, lane)
#else
#define EACH_VEC4(F, i, lane) F(0, i, lane) F(1, i, lane) F(2, i, lane) F(3, i, lane)
#endif

// Written out, as CPU drivers keep indexed arrays in memory and not in registers.
#define START_LOAD(i) \
    const uint row##i = min(first + i * SUBGROUP_SIZE + gl_SubgroupInvocationID % ROWS, rows - 1u); \
    const uint q_at##i = place_q(batch, row##i) / 4u; \
    const int query##i = query_of(batch, row##i); \
    const uint mask_at##i = find_mask(batch, row##i); \
    float largest##i = -INFINITY;
#define START_VEC4(n, i, lane) vec4 sum##i##_##lane##_##n = vec4(0.0);
#define START_ROW(i, lane, first, c) \
    EACH_VEC4(START_VEC4, i, lane) \
    float total##i##_##lane = 0.0;
#define START_SCORE(i, lane, first, c) vec4 score##i##_##lane = vec4(0.0);
#if ROWS < SUBGROUP_SIZE
// Lanes without a row of their own hold the next vec4s of one.
#define LOAD_Q(i) \
    const vec4 q##i = as_vec4(q[q_at##i + min(block + gl_SubgroupInvocationID / ROWS, depth / 4u - 1u)]);
#define MULTIPLY(i, lane, first, c) score##i##_##lane += subgroupShuffle(q##i, (d - block) * ROWS + lane) * of_keys;
#define ADD_VEC4S(from, to) \
    for (uint block = from; block < to; block += SUBGROUP_SIZE / ROWS) { \
        EACH_LOAD(LOAD_Q) \
        const uint behind = min(block + SUBGROUP_SIZE / ROWS, to); \
        for (uint d = block; d < behind; ++d) ADD_FOUR_STEPS \
    }
#else
#define LOAD_Q(i) const vec4 q##i = as_vec4(q[q_at##i + d]);
#define MULTIPLY(i, lane, first, c) score##i##_##lane += FROM(q##i, lane) * of_keys;
#define ADD_VEC4S(from, to) \
    for (uint d = from; d < to; ++d) { \
        EACH_LOAD(LOAD_Q) \
        ADD_FOUR_STEPS \
    }
#endif
#define ADD_FOUR_STEPS { \
    const mat4 of_keys = SCALED(mat4(KEY_VEC4(k_at.x, d), KEY_VEC4(k_at.y, d), KEY_VEC4(k_at.z, d), KEY_VEC4(k_at.w, d))); \
    EACH_ROW(MULTIPLY) }

#ifdef Q8_0_KV
// Eight vec4s of a key share a scale.
#define SCALED(codes) codes_times(codes, scales)
#define SCALE_OF(row) q8_scale(k[SCALES_AT(row, begin)], begin)
#define ADD_DEPTH \
    for (uint begin = 0u; begin < depth / 4u; begin += 8u) { \
        const vec4 scales = vec4(SCALE_OF(k_at.x), SCALE_OF(k_at.y), SCALE_OF(k_at.z), SCALE_OF(k_at.w)); \
        const uint stop = min(begin + 8u, depth / 4u); \
        ADD_VEC4S(begin, stop) \
    }

mat4 codes_times(mat4 codes, vec4 by) { return mat4(codes[0] * by.x, codes[1] * by.y, codes[2] * by.z, codes[3] * by.w); }
#else
#define SCALED(keys) keys
#define ADD_DEPTH ADD_VEC4S(0u, depth / 4u)
#endif

#ifdef SHAPED
#define SCALE(i, lane, first, c) score##i##_##lane *= scale;
#define HOLD(i, lane, first, c) held[i * SUBGROUP_SIZE + lane] = score##i##_##lane;
#define TAKE(i, lane, first, c) score##i##_##lane = held[i * SUBGROUP_SIZE + lane];
#define FINISH(i, lane, first, c) \
    score##i##_##lane = hide(score##i##_##lane, FROM(query##i, lane), FROM(mask_at##i, lane), key, end); \
    float most##i##_##lane = largest_of(score##i##_##lane);
#else
#define FINISH(i, lane, first, c) \
    score##i##_##lane = mix(score##i##_##lane * scale, vec4(-INFINITY), hidden); \
    float most##i##_##lane = largest_of(score##i##_##lane);
#endif

// The largest of each row over all lanes, in the lane of the row: two rows meet, and a lane keeps one of them.
#define OTHER(value, bit) subgroupShuffle(value, gl_SubgroupInvocationID ^ bit)
#define HAS(bit) ((gl_SubgroupInvocationID & bit) != 0u)
#define MEET(i, one, two, bit) most##i##_##one = larger_of( \
    HAS(bit) ? most##i##_##two : most##i##_##one, OTHER(HAS(bit) ? most##i##_##one : most##i##_##two, bit));
#define MEET_ITSELF(i, one, bit) most##i##_##one = larger_of(most##i##_##one, OTHER(most##i##_##one, bit));
#if SUBGROUP_SIZE == 4
#define BETWEEN_VEC4S(i)
#elif ROWS == 1
#define BETWEEN_VEC4S(i) MEET_ITSELF(i, 0, 4u)
#elif ROWS == 4
#define BETWEEN_VEC4S(i) MEET_ITSELF(i, 0, 4u) MEET_ITSELF(i, 1, 4u) MEET_ITSELF(i, 2, 4u) MEET_ITSELF(i, 3, 4u)
#else
#define BETWEEN_VEC4S(i) MEET(i, 0, 4, 4u) MEET(i, 1, 5, 4u) MEET(i, 2, 6, 4u) MEET(i, 3, 7, 4u)
#endif
#if ROWS == 1
#define IN_VEC4(i) MEET_ITSELF(i, 0, 2u) MEET_ITSELF(i, 0, 1u)
#else
#define IN_VEC4(i) MEET(i, 0, 2, 2u) MEET(i, 1, 3, 2u) MEET(i, 0, 1, 1u)
#endif
#define SHRINK(i) \
    BETWEEN_VEC4S(i) \
    IN_VEC4(i) \
    const float now##i = larger_of(largest##i, most##i##_0); \
    const float base##i = now##i == -INFINITY ? 0.0 : now##i; \
    const float shrunk##i = weigh_vec4(vec4(largest##i), base##i).x; \
    largest##i = now##i;
#define SHRINK_VEC4(n, i, lane) sum##i##_##lane##_##n *= by;
#define WEIGH(i, lane, first, c) { \
    const float by = FROM(shrunk##i, lane); \
    score##i##_##lane = weigh_vec4(score##i##_##lane, FROM(base##i, lane)); \
    total##i##_##lane = total##i##_##lane * by + sum_of(score##i##_##lane); \
    EACH_VEC4(SHRINK_VEC4, i, lane) }

#define LOAD_VEC4(n, i, lane) \
    const uint column##n = first_column / 4u + min(n * SUBGROUP_SIZE + gl_SubgroupInvocationID, columns / 4u - 1u); \
    const mat4 values##n = mat4( \
        VALUE_VEC4(v_at.x, column##n), VALUE_VEC4(v_at.y, column##n), VALUE_VEC4(v_at.z, column##n), VALUE_VEC4(v_at.w, column##n));
#define ADD_VEC4(n, i, lane) sum##i##_##lane##_##n += values##n * weights;
#define ADD(i, lane, first, c) { \
    const vec4 weights = WEIGHTS_OF(score##i##_##lane, from); \
    EACH_VEC4(ADD_VEC4, i, lane) }
// Add the four keys of one lane to all sums.
#define ADD_FOUR { \
    const uvec4 v_at = v_from + min(start + from * 4u + uvec4(0u, 1u, 2u, 3u), uvec4(end - 1u)) * VEC4_INDEX(v_row); \
    EACH_VEC4(LOAD_VEC4, 0, 0) \
    EACH_ROW(ADD) }
#if SUBGROUP_SIZE == 4 && ROWS > 4
// SwiftShader masks every variable at each round of a loop; broadcasts, of constants only, cost it nothing.
#define WEIGHTS_OF subgroupBroadcast
#define ADD_KEYS \
    { const uint from = 0u; ADD_FOUR } \
    { const uint from = 1u; ADD_FOUR } \
    { const uint from = 2u; ADD_FOUR } \
    { const uint from = 3u; ADD_FOUR }
#else
#define WEIGHTS_OF subgroupShuffle
#define ADD_KEYS for (uint from = 0u; from < SUBGROUP_SIZE; ++from) ADD_FOUR
#endif

#define KEEP_VEC4(n, i, lane) sums[(i * SUBGROUP_SIZE + lane) * VEC4S_PER_LANE + n] = sum##i##_##lane##_##n;
#define KEEP(i, lane, first, c) \
    EACH_VEC4(KEEP_VEC4, i, lane) \
    totals[i * SUBGROUP_SIZE + lane] = total##i##_##lane; \
    most[i * SUBGROUP_SIZE + lane] = FROM(largest##i, lane);

float larger_of(float one, float two) { return two > one ? two : one; }

float largest_of(vec4 scores) {
    const vec2 two = mix(scores.xy, scores.zw, greaterThan(scores.zw, scores.xy));
    return larger_of(two.x, two.y);
}

float sum_of(vec4 x) { return (x.x + x.y) + (x.z + x.w); }

// exp(scores - base) for a finite base; 0 for -infinity, NaN for NaN and for +infinity.
vec4 weigh_vec4(vec4 scores, float base) {
    vec4 x = (scores - base) * 1.44269504;
    x = mix(x, vec4(-127.0), lessThan(x, vec4(-127.0)));
    const vec4 whole = floor(x + 0.5);
    const vec4 f = (x - whole) * 0.69314718;
    const vec4 p = 1.0 + f * (1.0 + f * (0.5 + f * (0.16666667 + f * (0.041666668 + f * (0.008333334 + f * 0.0013888889)))));
    return p * intBitsToFloat((ivec4(whole) + 127) * 0x00800000);
}

#ifdef SHAPED
vec4 cap_vec4(vec4 scores) {
    const vec4 x = scores / softcap;
    return softcap * vec4(plain_tanh(x.x), plain_tanh(x.y), plain_tanh(x.z), plain_tanh(x.w));
}

// Four scores of a query, from a key on, with the mask and all that hides a key. end: of the keys that are seen.
vec4 hide(vec4 scores, int query, uint mask_at, uint key, uint end) {
    const ivec4 keys_here = int(key) + ivec4(0, 1, 2, 3);
#ifdef MASKED
    const uvec4 at = mask_at + min(uvec4(keys_here), uvec4(end - 1u)) * mask_strides[3];
    const uvec4 words = uvec4(mask[at.x], mask[at.y], mask[at.z], mask[at.w]);
    if (IS_BIAS != 0u) scores += uintBitsToFloat(words);
    scores = mix(scores, vec4(-INFINITY), equal(words, uvec4(IS_BIAS != 0u ? 0xff800000u : 0u)));
#endif
    scores = mix(scores, vec4(-INFINITY), lessThan(keys_here, ivec4(query + first_visible)));
    return mix(scores, vec4(-INFINITY), greaterThan(keys_here, ivec4(min(query + last_visible, int(end) - 1))));
}
#endif

void attend(uint batch, uint first, uint part) {
    const uvec2 seen = visible_keys(batch, first, ROWS, part);
    const uint end = seen.y;
    const uint k_from = VEC4_INDEX(place_keys(k_offset, batch, k_row, k_head));
    const uint v_from = VEC4_INDEX(place_keys(v_offset, batch, v_row, v_head));
    EACH_LOAD(START_LOAD)
    EACH_ROW(START_ROW)
    for (uint start = seen.x; start < end; start += KEYS) {
        const uint key = start + gl_SubgroupInvocationID * 4u;
        const uvec4 k_at = k_from + min(key + uvec4(0u, 1u, 2u, 3u), uvec4(end - 1u)) * VEC4_INDEX(k_row);
        EACH_ROW(START_SCORE)
        ADD_DEPTH
#ifdef SHAPED
        EACH_ROW(SCALE)
        if (SOFTCAP != 0u) {
            vec4 held[ROWS];
            EACH_ROW(HOLD)
            for (uint i = 0u; i < SOFTCAP * ROWS; ++i) held[i] = cap_vec4(held[i]);
            EACH_ROW(TAKE)
        }
#else
        const bvec4 hidden = greaterThanEqual(key + uvec4(0u, 1u, 2u, 3u), uvec4(end));
#endif
        EACH_ROW(FINISH)
        EACH_LOAD(SHRINK)
        EACH_ROW(WEIGH)
        ADD_KEYS
    }
    vec4 sums[ROWS * VEC4S_PER_LANE];
    float totals[ROWS];
    float most[ROWS];
    EACH_ROW(KEEP)
    const uint kept = min(ROWS, rows - first);
    for (uint i = 0u; i < kept; ++i) {
        float total = totals[i];
        for (uint bit = 1u; bit < SUBGROUP_SIZE; bit *= 2u) total += OTHER(total, bit);
        const uint at = place_result(batch, first + i, part);
        const float whole = WHOLE == 0u ? 1.0 : total;
        for (uint n = 0u; n < VEC4S_PER_LANE; ++n) {
            const uint column = (n * SUBGROUP_SIZE + gl_SubgroupInvocationID) * 4u;
            const vec4 value = whole == 0.0 ? vec4(uintBitsToFloat(FULLY_MASKED)) : sums[i * VEC4S_PER_LANE + n] / whole;
            if (column < columns) result[(at + first_column + column) / 4u] = value;
        }
        if (WHOLE == 0u && gl_SubgroupInvocationID == 0u) result[place_state(at) / 4u] = vec4(most[i], total, 0.0, 0.0);
    }
}

// No loop over tiles, in which CPU drivers would guard every variable by a mask.
void main() {
    const uint tiles = tiles_of(ROWS);
    const uint tile = first_tile + gl_WorkGroupID.x;
    attend(tile / tiles, tile % tiles * ROWS, gl_WorkGroupID.y);
}
