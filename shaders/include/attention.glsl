// What both attention algorithms share: which keys a row sees, scores, and the steps of the online softmax.
// A row of q, one query of one head, is worked on in tiles of rows, and its keys in parts.
// With WHOLE 0 a part leaves the sums, the largest score and the total of its weights for attention_combine.comp.
// A key of weight 0 counts as not there, whatever it holds; a row that sees no key is 0.

// Lowest and highest query of a tile of rows.
ivec2 tile_queries(uint first, uint count) {
    const uint last = min(first + count, rows) - 1u;
    if (first / queries != last / queries) return ivec2(0, int(queries) - 1);
    return ivec2(first % queries, last % queries);
}

// First key and end of the keys of a part that any row of a tile may see.
uvec2 seen_keys(uint first, uint count, uint part) {
    const ivec2 query = tile_queries(first, count);
    const int start = max(int(part * part_keys), query.x + first_seen);
    const int end = min(int(min((part + 1u) * part_keys, keys)), query.y + last_seen + 1);
    return uvec2(max(start, 0), max(end, 0));
}

// The score of a product of q and k, with all that hides the key.
float finish_score(float score, int query, uint mask_at, uint key) {
    if (int(key) < query + first_seen || int(key) > query + last_seen) return -INFINITY;
    score *= scale;
    if (SOFTCAP != 0u) score = softcap * safe_tanh(score / softcap);
#ifdef MASKED
    const uint word = mask[mask_at + key * mask_strides[3]];
    if (IS_BIAS == 0u) return word != 0u ? score : -INFINITY;
    return word == 0xff800000u ? -INFINITY : score + uintBitsToFloat(word);
#else
    return score;
#endif
}

uint find_mask(uint batch, uint row) {
#ifdef MASKED
    const uint head = batch % heads * (rows / queries) + row / queries;
    return mask_offset + batch / heads * mask_strides[0] + head * mask_strides[1] + row % queries * mask_strides[2];
#else
    return 0u;
#endif
}

// Where the sums of a part of a row lie: with WHOLE 1 there is one part, and result_row is v_row.
uint place_result(uint batch, uint row, uint part) {
    return result_offset + ((batch * rows + row) * parts + part) * result_row;
}

// The larger score. A score that is NaN makes its weight NaN, and with it the total, so it need not be the largest.
float larger(float largest, float score) { return is_nan(score) || score < largest ? largest : score; }

float weigh(float score, float largest) {
    if (floatBitsToUint(score) == 0xff800000u) return 0.0;
    return safe_exp(score - largest);
}

// By what sums shrink when a larger score comes.
float shrink(float before, float largest) { return before == largest ? 1.0 : safe_exp(before - largest); }
