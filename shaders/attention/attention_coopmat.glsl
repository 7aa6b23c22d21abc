// Attention by cooperative matrices: a group of SUBGROUPS subgroups works on ROWS rows of q, each subgroup on MATRIX_M of them, KEYS keys at
// a time. Both products are of float16, summed in float32; the softmax between is float32.
//
//     queries (registers) x keys (shared memory) -> scores -> weights (shared memory) x values (shared memory) -> sums (registers)
//
// Rows of scores and weights are a subgroup's own; LANES / MATRIX_M lanes share one in the softmax.
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint MATRIX_M = 16;
layout(constant_id = 4) const uint MATRIX_N = 16;
layout(constant_id = 5) const uint MATRIX_K = 16;
layout(constant_id = 6) const uint DEPTHS = 4; // matrices along depth
layout(constant_id = 7) const uint COLUMNS = 4; // matrices across v
layout(constant_id = 8) const uint SOFTCAP = 0;
layout(constant_id = 9) const uint IS_BIAS = 0;
layout(constant_id = 10) const uint WHOLE = 1;
layout(constant_id = 11) const uint FULLY_MASKED = 0; // the bits of the result of a query that sees no key
layout(constant_id = 12) const uint PADDED = 1; // 0: heads fill their matrices, and rows begin at whole words
layout(constant_id = 13) const uint KEYS = 32;
layout(constant_id = 14) const uint CHUNK = 0; // cached keys are seen from a multiple of it on; 0: all
#include "attention.glsl"
#ifndef FP16_ROWS
#include "attention_row.glsl"
#endif

const uint SUBGROUPS = 4u;
const uint ROWS = SUBGROUPS * MATRIX_M;
const uint LANES = gl_WorkGroupSize.x / SUBGROUPS;
const uint OWN_KEYS = KEYS * MATRIX_M / LANES; // of a lane, in the softmax
// Lines of shared memory, in words of four, one more so that lines start in different banks.
const uint DEEP_EIGHTS = DEPTHS * MATRIX_K / 8u;
const uint V_EIGHTS = COLUMNS * MATRIX_N / 8u;
const uint K_LINE = DEEP_EIGHTS + 1u;
const uint V_LINE = V_EIGHTS + 1u;
const uint SCORES = KEYS / 4u + 1u;
const uint WEIGHTS = KEYS / 8u + 1u;
const uint FACTORS = MATRIX_N / 4u;
const uint V_TILE = KEYS * K_LINE; // where values begin, behind keys
const uint KEY_WORDS = KEYS * (K_LINE + V_LINE);
const uint QUERY_WORDS = ROWS * K_LINE;
shared uvec4 tiles[KEY_WORDS > QUERY_WORDS ? KEY_WORDS : QUERY_WORDS]; // of float16, as are the weights; queries lie there before keys
shared uvec4 weights[ROWS * WEIGHTS];
shared vec4 scores[ROWS * SCORES];
shared vec4 factors[ROWS * FACTORS]; // of each row, as often as a matrix is wide
shared uint places[ROWS];
shared vec2 state[ROWS];
shared int non_finite[4]; // of each subgroup: 1 if a sum is not finite

#define SUM coopmat<float, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>
#define LEFT coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_K, gl_MatrixUseA>
#define RIGHT coopmat<float16_t, gl_ScopeSubgroup, MATRIX_K, MATRIX_N, gl_MatrixUseB>

uint pack_fp16x2(float low, float high) { return packFloat2x16(f16vec2(low, high)); }

// Puts eight neighbours of a row into a tile: from `eight * 8` on, up to `size`; 0 else.
#define PUT_EIGHT(to, READ, row, eight, size) { \
    float read[8]; \
    [[unroll]] for (uint j = 0u; j < 8u; ++j) { \
        const uint i = (eight) * 8u + j; \
        const float value = READ(row, PADDED != 0u ? min(i, (size) - 1u) : i); \
        read[j] = PADDED == 0u || i < (size) ? value : 0.0; \
    } \
    to = uvec4(pack_fp16x2(read[0], read[1]), pack_fp16x2(read[2], read[3]), \
               pack_fp16x2(read[4], read[5]), pack_fp16x2(read[6], read[7])); \
}
#define OWN_VALUE(row, i) VALUE(row, first_column + (i))
// Where heads fill their matrices, float16 stays as it lies, as rows begin at whole words; an eight of q8_0 shares a scale.
#ifdef FP16_KV
#define PUT_WORDS(to, from, place) { \
    const uint word = (place) / 2u; \
    to = uvec4(from[word], from[word + 1u], from[word + 2u], from[word + 3u]); \
}
#define PUT_KEYS(to, row, eight) \
    if (PADDED == 0u) PUT_WORDS(to, k, (row) + (eight) * 8u) else PUT_EIGHT(to, KEY, row, eight, depth)
#define PUT_VALUES(to, row, eight) \
    if (PADDED == 0u) PUT_WORDS(to, v, (row) + first_column + (eight) * 8u) else PUT_EIGHT(to, OWN_VALUE, row, eight, columns)
#elif defined(Q8_0_KV)
#define PUT_CODES(to, from, row, four) { \
    const float by = q8_scale(from[SCALES_AT(row, four)], four); \
    const vec4 low = q8_codes(from[CODES_AT(row, four)]) * by; \
    const vec4 high = q8_codes(from[CODES_AT(row, (four) + 1u)]) * by; \
    to = uvec4(pack_fp16x2(low.x, low.y), pack_fp16x2(low.z, low.w), pack_fp16x2(high.x, high.y), pack_fp16x2(high.z, high.w)); \
}
#define PUT_KEYS(to, row, eight) \
    if (PADDED == 0u) PUT_CODES(to, k, row, (eight) * 2u) else PUT_EIGHT(to, KEY, row, eight, depth)
#define PUT_VALUES(to, row, eight) \
    if (PADDED == 0u) PUT_CODES(to, v, row, first_column / 4u + (eight) * 2u) else PUT_EIGHT(to, OWN_VALUE, row, eight, columns)
#else
#define PUT_KEYS(to, row, eight) PUT_EIGHT(to, KEY, row, eight, depth)
#define PUT_VALUES(to, row, eight) PUT_EIGHT(to, OWN_VALUE, row, eight, columns)
#endif
#ifdef FP16_ROWS
#define QUERY(row, i) fp16_at(q[((row) + (i)) / 2u], (row) + (i))
#define NEW_KEY(row, i) fp16_at(k_new[((row) + (i)) / 2u], (row) + (i))
#define NEW_VALUE(row, i) fp16_at(v_new[((row) + first_column + (i)) / 2u], (row) + first_column + (i))
#define PUT_ROW(to, from, READ, row, first, eight, size) \
    if (PADDED == 0u) PUT_WORDS(to, from, (row) + (first) + (eight) * 8u) else PUT_EIGHT(to, READ, row, eight, size)
#else
#define QUERY(row, i) q[(row) + (i)]
#define NEW_KEY(row, i) k_new[(row) + (i)]
#define NEW_VALUE(row, i) v_new[(row) + first_column + (i)]
#define PUT_ROW(to, from, READ, row, first, eight, size) PUT_EIGHT(to, READ, row, eight, size)
#endif
#ifdef NEW_KEYS
#define PUT_KEYS_OF(to, row, eight) \
    if (segment.is_new) { PUT_ROW(to, k_new, NEW_KEY, row, 0u, eight, depth) } else { PUT_KEYS(to, row, eight) }
#define PUT_VALUES_OF(to, row, eight) \
    if (segment.is_new) { PUT_ROW(to, v_new, NEW_VALUE, row, first_column, eight, columns) } else { PUT_VALUES(to, row, eight) }
#else
#define PUT_KEYS_OF(to, row, eight) PUT_KEYS(to, row, eight)
#define PUT_VALUES_OF(to, row, eight) PUT_VALUES(to, row, eight)
#endif

// ROWS rows of q, from row `first` on.
void load_queries(uint batch, uint first) {
    for (uint i = gl_LocalInvocationIndex; i < ROWS * DEEP_EIGHTS; i += gl_WorkGroupSize.x) {
        const uint at = place_q(batch, min(first + i / DEEP_EIGHTS, rows - 1u));
        PUT_ROW(tiles[i / DEEP_EIGHTS * K_LINE + i % DEEP_EIGHTS], q, QUERY, at, 0u, i % DEEP_EIGHTS, depth)
    }
}

// KEYS keys from `start` on and their values; those from `end` on repeat the last one, and weigh nothing.
void load_keys(Segment segment, uint start, uint end) {
    for (uint i = gl_LocalInvocationIndex; i < KEYS * DEEP_EIGHTS; i += gl_WorkGroupSize.x) {
        const uint at = segment.k_at + min(start + i / DEEP_EIGHTS, end - 1u) * segment.k_step;
        PUT_KEYS_OF(tiles[i / DEEP_EIGHTS * K_LINE + i % DEEP_EIGHTS], at, i % DEEP_EIGHTS)
    }
    for (uint i = gl_LocalInvocationIndex; i < KEYS * V_EIGHTS; i += gl_WorkGroupSize.x) {
        const uint at = segment.v_at + min(start + i / V_EIGHTS, end - 1u) * segment.v_step;
        PUT_VALUES_OF(tiles[V_TILE + i / V_EIGHTS * V_LINE + i % V_EIGHTS], at, i % V_EIGHTS)
    }
}

// Lanes of a subgroup read values that other lanes of it wrote to shared memory.
void meet() { controlBarrier(gl_ScopeSubgroup, gl_ScopeSubgroup, gl_StorageSemanticsShared, gl_SemanticsAcquireRelease); }

#ifdef FP16_ROWS
#include "attention_coopmat_row.glsl"
#endif

void attend(uint batch, uint first, uint part) {
    const uint own_first = gl_SubgroupID * MATRIX_M; // of the rows of a tile
    const uint own = own_first + gl_SubgroupInvocationID % MATRIX_M; // that of a lane, in the softmax
    const uint share = gl_SubgroupInvocationID / MATRIX_M; // and its part of the keys
    const uint row = min(first + own, rows - 1u);
    const int query = query_of(batch, row);
    const uint mask_at = find_mask(batch, row);
    meet(); // those of the tile before have been read
    if (share == 0u) places[own] = place_result(batch, row, part);
    if (gl_SubgroupInvocationID == 0u) non_finite[gl_SubgroupID] = 0;
    barrier(); // the tiles before have been read
    load_queries(batch, first);
    barrier();
    LEFT own_queries[DEPTHS];
    [[unroll]] for (uint d = 0u; d < DEPTHS; ++d) {
        coopMatLoad(own_queries[d], tiles, own_first * K_LINE + d * MATRIX_K / 8u, K_LINE, gl_CooperativeMatrixLayoutRowMajor);
    }
    SUM sums[COLUMNS];
    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) sums[c] = SUM(0.0);
    float largest = -INFINITY;
    float total = 0.0;
    const uvec2 seen = visible_keys(batch, first, ROWS, part);
    uint end = seen.x;
    for (uint start = seen.x; start < seen.y; start = end) {
        const Segment segment = segment_of(batch, start);
        end = min(start + KEYS, min(seen.y, segment.end));
        barrier(); // the tiles before have been read
        load_keys(segment, start, end);
        barrier();
        [[unroll]] for (uint j = 0u; j < KEYS; j += MATRIX_N) {
            SUM products = SUM(0.0);
            [[unroll]] for (uint d = 0u; d < DEPTHS; ++d) {
                RIGHT keys_of_step;
                coopMatLoad(keys_of_step, tiles, j * K_LINE + d * MATRIX_K / 8u, K_LINE, gl_CooperativeMatrixLayoutColumnMajor);
                products = coopMatMulAdd(own_queries[d], keys_of_step, products);
            }
            coopMatStore(products, scores, own_first * SCORES + j / 4u, SCORES, gl_CooperativeMatrixLayoutRowMajor);
        }
        meet();
        const float before = largest;
        float own_scores[OWN_KEYS];
        [[unroll]] for (uint i = 0u; i < OWN_KEYS / 4u; ++i) {
            const vec4 products = scores[own * SCORES + share * (OWN_KEYS / 4u) + i];
            [[unroll]] for (uint j = 0u; j < 4u; ++j) {
                const uint key = start + share * OWN_KEYS + i * 4u + j;
                own_scores[i * 4u + j] = finish_score(products[j], query, mask_at, key, end);
                largest = larger(largest, own_scores[i * 4u + j]);
            }
        }
        for (uint i = MATRIX_M; i < LANES; i *= 2u) largest = larger(largest, subgroupShuffleXor(largest, i));
        const float factor = shrink(before, largest);
        total *= factor;
        const float base = largest == -INFINITY ? 0.0 : largest;
        [[unroll]] for (uint i = 0u; i < OWN_KEYS; i += 8u) {
            float own_weights[8];
            [[unroll]] for (uint j = 0u; j < 8u; ++j) {
                own_weights[j] = exp(own_scores[i + j] - base); // of a hidden key 0, or next to it
                total += own_weights[j];
            }
            weights[own * WEIGHTS + (share * OWN_KEYS + i) / 8u] = uvec4(
                pack_fp16x2(own_weights[0], own_weights[1]), pack_fp16x2(own_weights[2], own_weights[3]),
                pack_fp16x2(own_weights[4], own_weights[5]), pack_fp16x2(own_weights[6], own_weights[7]));
        }
        for (uint i = share; i < FACTORS; i += LANES / MATRIX_M) factors[own * FACTORS + i] = vec4(factor);
        meet();
        SUM by;
        coopMatLoad(by, factors, own_first * FACTORS, FACTORS, gl_CooperativeMatrixLayoutRowMajor);
        [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) sums[c] = sums[c] * by;
        [[unroll]] for (uint s = 0u; s < KEYS; s += MATRIX_K) {
            LEFT own_weights;
            coopMatLoad(own_weights, weights, own_first * WEIGHTS + s / 8u, WEIGHTS, gl_CooperativeMatrixLayoutRowMajor);
            [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) {
                RIGHT values;
                coopMatLoad(values, tiles, V_TILE + s * V_LINE + c * MATRIX_N / 8u, V_LINE, gl_CooperativeMatrixLayoutRowMajor);
                sums[c] = coopMatMulAdd(own_weights, values, sums[c]);
            }
        }
    }
    for (uint i = MATRIX_M; i < LANES; i *= 2u) total += subgroupShuffleXor(total, i);
    if (total < 0.5) total = 0.0; // all is hidden, as the largest score weighs 1
    if (share == 0u) state[own] = vec2(largest, total);
    uint exponents = 0u;
    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) {
        for (uint i = 0u; i < sums[c].length(); ++i) exponents = max(exponents, floatBitsToUint(sums[c][i]) & 0x7f800000u);
    }
    if (exponents == 0x7f800000u) non_finite[gl_SubgroupID] = 1;
    meet();
    if (non_finite[gl_SubgroupID] != 0) {
        // seldom: in float32, and with care for what has weight 0
#ifdef FP16_ROWS
        attend_rows(batch, first + own_first, own_first, seen);
#else
        if (share == 0u && first + own < rows) attend_row(batch, row, places[own], seen);
#endif
        return;
    }
    [[unroll]] for (uint c = 0u; c < COLUMNS; ++c) {
        meet(); // the scores before have been read
        coopMatStore(sums[c], scores, own_first * SCORES, SCORES, gl_CooperativeMatrixLayoutRowMajor);
        meet();
#ifdef FP16_ROWS
        for (uint i = gl_SubgroupInvocationID * 2u; i < MATRIX_M * MATRIX_N; i += LANES * 2u) {
            const uint in_tile = own_first + i / MATRIX_N;
            const uint column = c * MATRIX_N + i % MATRIX_N;
            const vec4 values = scores[in_tile * SCORES + i % MATRIX_N / 4u];
            if (first + in_tile < rows && column < columns) {
                store_pair(places[in_tile] + first_column + column, i % 4u == 0u ? values.xy : values.zw, state[in_tile].y);
            }
        }
#else
        for (uint i = gl_SubgroupInvocationID; i < MATRIX_M * MATRIX_N; i += LANES) {
            const uint in_tile = own_first + i / MATRIX_N;
            const uint column = c * MATRIX_N + i % MATRIX_N;
            if (first + in_tile < rows && column < columns) {
                const float value = scores[in_tile * SCORES + i % MATRIX_N / 4u][i % 4u];
                const float whole = state[in_tile].y;
                result[places[in_tile] + first_column + column] =
                    WHOLE == 0u ? value : whole == 0.0 ? uintBitsToFloat(FULLY_MASKED) : value / whole;
            }
        }
#endif
    }
    if (WHOLE == 0u && share == 0u && first + own < rows) {
        result[place_state(places[own])] = largest;
        result[place_state(places[own]) + 1u] = total;
    }
}

void main() {
    const uint tiles = tiles_of(ROWS);
    for (uint part = gl_WorkGroupID.y; part < count_parts(); part += gl_NumWorkGroups.y) {
        for (uint tile = first_tile + gl_WorkGroupID.x; tile < end_tile; tile += gl_NumWorkGroups.x) {
            attend(tile / tiles, tile % tiles * ROWS, part);
        }
    }
}
