// Results of FP16_ROWS, of an even number of columns: pairs of float16, or with WHOLE 0 of sums.

// Two sums of a row at a place; whole: the total of its weights.
void store_pair(uint at, vec2 values, float whole) {
    if (WHOLE == 0u) {
        result[at] = values.x;
        result[at + 1u] = values.y;
        return;
    }
    if (whole == 0.0) values = vec2(uintBitsToFloat(FULLY_MASKED));
    else values /= whole;
    result_words[at / 2u] = pack_fp16x2(values.x, values.y);
}

const uint OWN_PAIRS = (COLUMNS * MATRIX_N / 2u + LANES - 1u) / LANES; // columns of a lane

// The rows of a subgroup from `first` on, one after the other, in float32: all lanes compute a score, and each lane sums its columns.
// seen: first key and end of the keys that a row may see.
void attend_rows(uint batch, uint first, uint own_first, uvec2 seen) {
    for (uint own = 0u; own < min(MATRIX_M, rows - min(first, rows)); ++own) {
        const int query = query_of(batch, first + own);
        const uint mask_at = find_mask(batch, first + own);
        const uint q_at = place_q(batch, first + own);
        vec2 own_sums[OWN_PAIRS];
        [[unroll]] for (uint p = 0u; p < OWN_PAIRS; ++p) own_sums[p] = vec2(0.0);
        float largest = -INFINITY;
        float total = 0.0;
        for (uint key = seen.x; key < seen.y; ++key) {
            const Segment segment = segment_of(batch, key);
            const uint k_at = segment.k_at + key * segment.k_step, v_at = segment.v_at + key * segment.v_step;
            float score = 0.0;
            for (uint d = 0u; d < depth; ++d) score += QUERY(q_at, d) * (segment.is_new ? NEW_KEY(k_at, d) : KEY(k_at, d));
            score = finish_score(score, query, mask_at, key, key + 1u);
            const float before = largest;
            largest = larger(largest, score);
            const float factor = shrink(before, largest), weight = weigh(score, largest);
            total = total * factor + weight;
            [[unroll]] for (uint p = 0u; p < OWN_PAIRS; ++p) {
                const uint column = min((gl_SubgroupInvocationID + p * LANES) * 2u, columns - 2u);
                const vec2 value = segment.is_new ? vec2(NEW_VALUE(v_at, column), NEW_VALUE(v_at, column + 1u))
                                                  : vec2(OWN_VALUE(v_at, column), OWN_VALUE(v_at, column + 1u));
                own_sums[p] = factor == 0.0 ? vec2(0.0) : own_sums[p] * factor;
                if (weight != 0.0) own_sums[p] += weight * value;
            }
        }
        const uint at = places[own_first + own];
        [[unroll]] for (uint p = 0u; p < OWN_PAIRS; ++p) {
            const uint column = (gl_SubgroupInvocationID + p * LANES) * 2u;
            if (column < columns) store_pair(at + first_column + column, own_sums[p], total);
        }
        if (WHOLE == 0u && gl_SubgroupInvocationID == 0u) {
            result[place_state(at)] = largest;
            result[place_state(at) + 1u] = total;
        }
    }
}
