// Attention for CPU drivers where attention_subgroup.glsl does not fit: no subgroups, or sizes that are no multiple of four.
// An invocation works on one row of q, eight keys at a time. The sums stay where the result will lie.
#include "attention_cpu.glsl"

// Written out, as CPU drivers keep indexed arrays in memory and not in registers.
#define FOR_EACH_KEY(F) F(0, 0u) F(1, 1u) F(2, 2u) F(3, 3u) F(4, 4u) F(5, 5u) F(6, 6u) F(7, 7u)
#define PLACE_KEY(i, number) \
    const uint key##i = min(start + number, seen.y - 1u); \
    const uint k##i = k_at + key##i * k_row; \
    const uint v##i = v_at + key##i * v_row; \
    float score##i = 0.0;
#define MULTIPLY_FOUR(i, number) score##i += dot(part_of_q, vec4(KEY(k##i, d), KEY(k##i, d + 1u), KEY(k##i, d + 2u), KEY(k##i, d + 3u)));
#define MULTIPLY_ONE(i, number) score##i += q[q_at + d] * KEY(k##i, d);
#define FINISH_SCORE(i, number) \
    score##i = finish_score(score##i, query, mask_at, start + number, seen.y); \
    largest = larger(largest, score##i);
#define WEIGH(i, number) \
    const float weight##i = weigh(score##i, largest); \
    total += weight##i;
#define ADD_FOUR(i, number) \
    const vec4 value##i = vec4(VALUE(v##i, c), VALUE(v##i, c + 1u), VALUE(v##i, c + 2u), VALUE(v##i, c + 3u)); \
    sum += mix(weight##i * value##i, vec4(0.0), bvec4(weight##i == 0.0));
#define ADD_ONE(i, number) \
    const float value##i = VALUE(v##i, c); \
    sum += mix(weight##i * value##i, 0.0, weight##i == 0.0);

#ifdef FALLBACK
// Whether a row is to be computed again, with care for what has weight 0: its result, or a part of it, is not finite.
bool is_wanted(uint at) {
    uint exponents = 0u;
    for (uint c = 0u; c < columns; ++c) exponents = max(exponents, floatBitsToUint(result[at + c]) & 0x7f800000u);
    return exponents == 0x7f800000u;
}
#else
bool is_wanted(uint at) { return true; }
#endif

void attend(uint batch, uint first, uint part) {
    const uvec2 seen = visible_keys(batch, first, gl_WorkGroupSize.x, part);
    const uint row = first + gl_LocalInvocationIndex;
    if (row >= rows) return;
    const int query = query_of(batch, row);
    const uint mask_at = find_mask(batch, row);
    const uint q_at = place_q(batch, row);
    const uint k_at = place_keys(k_offset, batch, k_row, k_head);
    const uint v_at = place_keys(v_offset, batch, v_row, v_head);
    const uint at = place_result(batch, row, part);
    if (!is_wanted(at)) return;
    for (uint c = 0u; c < columns; ++c) result[at + c] = 0.0;
    float largest = -INFINITY;
    float total = 0.0;
    for (uint start = seen.x; start < seen.y; start += 8u) {
        FOR_EACH_KEY(PLACE_KEY)
        uint d = 0u;
        for (; d + 4u <= depth; d += 4u) {
            const vec4 part_of_q = vec4(q[q_at + d], q[q_at + d + 1u], q[q_at + d + 2u], q[q_at + d + 3u]);
            FOR_EACH_KEY(MULTIPLY_FOUR)
        }
        for (; d < depth; ++d) {
            FOR_EACH_KEY(MULTIPLY_ONE)
        }
        const float before = largest;
        FOR_EACH_KEY(FINISH_SCORE)
        const float factor = shrink(before, largest);
        total *= factor;
        FOR_EACH_KEY(WEIGH)
        uint c = 0u;
        for (; c + 4u <= columns; c += 4u) {
            vec4 sum = vec4(result[at + c], result[at + c + 1u], result[at + c + 2u], result[at + c + 3u]);
            sum = factor == 0.0 ? vec4(0.0) : sum * factor;
            FOR_EACH_KEY(ADD_FOUR)
            result[at + c] = sum.x;
            result[at + c + 1u] = sum.y;
            result[at + c + 2u] = sum.z;
            result[at + c + 3u] = sum.w;
        }
        for (; c < columns; ++c) {
            float sum = factor == 0.0 ? 0.0 : result[at + c] * factor;
            FOR_EACH_KEY(ADD_ONE)
            result[at + c] = sum;
        }
    }
    if (WHOLE == 0u) {
        result[place_state(at)] = largest;
        result[place_state(at) + 1u] = total;
        return;
    }
    for (uint c = 0u; c < columns; ++c) result[at + c] = total == 0.0 ? uintBitsToFloat(FULLY_MASKED) : result[at + c] / total;
}

void main() {
    const uint tiles = tiles_of(gl_WorkGroupSize.x);
    for (uint part = gl_WorkGroupID.y; part < count_parts(); part += gl_NumWorkGroups.y) {
        for (uint tile = first_tile + gl_WorkGroupID.x; tile < end_tile; tile += gl_NumWorkGroups.x) {
            attend(tile / tiles, tile % tiles * gl_WorkGroupSize.x, part);
        }
    }
}
