// A row of q by one invocation, eight keys at a time, in float32. The sums stay where the result will lie, at `at`.

#ifdef NEW_KEYS
float key_of(bool is_new, uint row, uint i) {
    if (is_new) return k_new[row + i];
    return KEY(row, i);
}
float value_of(bool is_new, uint row, uint i) {
    if (is_new) return v_new[row + i];
    return VALUE(row, i);
}
#define KEY_OF(row, i) key_of(segment.is_new, row, i)
#define VALUE_OF(row, i) value_of(segment.is_new, row, first_column + (i))
#else
#define KEY_OF(row, i) KEY(row, i)
#define VALUE_OF(row, i) VALUE(row, first_column + (i))
#endif

// Written out, as CPU drivers keep indexed arrays in memory and not in registers.
#define FOR_EACH_KEY(F) F(0, 0u) F(1, 1u) F(2, 2u) F(3, 3u) F(4, 4u) F(5, 5u) F(6, 6u) F(7, 7u)
#define PLACE_KEY(i, number) \
    const uint key##i = min(start + number, end - 1u); \
    const uint k##i = segment.k_at + key##i * segment.k_step; \
    const uint v##i = segment.v_at + key##i * segment.v_step; \
    float score##i = 0.0;
#define MULTIPLY_FOUR(i, number) score##i += dot(part_of_q, vec4(KEY_OF(k##i, d), KEY_OF(k##i, d + 1u), KEY_OF(k##i, d + 2u), KEY_OF(k##i, d + 3u)));
#define MULTIPLY_ONE(i, number) score##i += q[q_at + d] * KEY_OF(k##i, d);
#define FINISH_SCORE(i, number) \
    score##i = finish_score(score##i, query, mask_at, start + number, end); \
    largest = larger(largest, score##i);
#define WEIGH(i, number) \
    const float weight##i = weigh(score##i, largest); \
    total += weight##i;
#define ADD_FOUR(i, number) \
    const vec4 value##i = vec4(VALUE_OF(v##i, c), VALUE_OF(v##i, c + 1u), VALUE_OF(v##i, c + 2u), VALUE_OF(v##i, c + 3u)); \
    sum += mix(weight##i * value##i, vec4(0.0), bvec4(weight##i == 0.0));
#define ADD_ONE(i, number) \
    const float value##i = VALUE_OF(v##i, c); \
    sum += mix(weight##i * value##i, 0.0, weight##i == 0.0);

// seen: first key and end of the keys that the row may see.
void attend_row(uint batch, uint row, uint at, uvec2 seen) {
    const int query = query_of(batch, row);
    const uint mask_at = find_mask(batch, row);
    const uint q_at = place_q(batch, row);
    const uint sums = at + first_column;
    for (uint c = 0u; c < columns; ++c) result[sums + c] = 0.0;
    float largest = -INFINITY;
    float total = 0.0;
    uint end = seen.x;
    for (uint start = seen.x; start < seen.y; start = end) {
        const Segment segment = segment_of(batch, start);
        end = min(start + 8u, min(seen.y, segment.end));
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
            vec4 sum = vec4(result[sums + c], result[sums + c + 1u], result[sums + c + 2u], result[sums + c + 3u]);
            sum = factor == 0.0 ? vec4(0.0) : sum * factor;
            FOR_EACH_KEY(ADD_FOUR)
            result[sums + c] = sum.x;
            result[sums + c + 1u] = sum.y;
            result[sums + c + 2u] = sum.z;
            result[sums + c + 3u] = sum.w;
        }
        for (; c < columns; ++c) {
            float sum = factor == 0.0 ? 0.0 : result[sums + c] * factor;
            FOR_EACH_KEY(ADD_ONE)
            result[sums + c] = sum;
        }
    }
    if (WHOLE == 0u) {
        result[place_state(at)] = largest;
        result[place_state(at) + 1u] = total;
        return;
    }
    for (uint c = 0u; c < columns; ++c) result[sums + c] = total == 0.0 ? uintBitsToFloat(FULLY_MASKED) : result[sums + c] / total;
}
