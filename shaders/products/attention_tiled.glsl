// Attention for GPUs: a group of 4 rows of 32 lanes works on ROWS rows of q, KEYS keys at a time.
// Each lane computes ROWS / 4 rows by two keys of the scores, then ROWS / 4 rows by COLUMNS columns of the sums, from tiles
// of q, k and v in shared memory.
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint ROWS = 16;
layout(constant_id = 4) const uint COLUMNS = 8;
layout(constant_id = 5) const uint SOFTCAP = 0;
layout(constant_id = 6) const uint IS_BIAS = 0;
layout(constant_id = 7) const uint WHOLE = 1;
layout(constant_id = 8) const uint NONE_SEEN = 0; // the bits of the result of a query that sees no key
#include "attention.glsl"

const uint KEYS = 64u;
const uint STEP = 16u; // of depth, through shared memory
const uint ACROSS = 32u;
const uint DOWN = gl_WorkGroupSize.x / ACROSS;
const uint OWN_ROWS = ROWS / DOWN;
const uint OWN_KEYS = KEYS / ACROSS;
const uint LANES = gl_WorkGroupSize.x / ROWS; // of one row, in the softmax
// Four words more per row: eight lanes that read four words each meet different banks.
const uint ALONG = STEP + 4u;
const uint SCORES = KEYS + 4u;
const uint WIDTH = ACROSS * COLUMNS; // of v
const uint V_KEYS = KEYS * STEP / WIDTH; // of a tile of v, which takes the place of k's
shared float q_tile[ROWS * ALONG];
shared float tile[KEYS * ALONG];
shared float scores[ROWS * SCORES];
shared float lanes[gl_WorkGroupSize.x];
shared float state[ROWS];
shared uint q_places[ROWS];
// In the first word 1 if a value of v was not finite: from then on keys of weight 0 are left out. Four, as drivers lay arrays
// behind each other, and only of those at whole vec4s they know that four words can be read at once.
// Of int: glslang would give uint the type of mask_strides, with a stride, which shared memory may not have.
shared int wild[4];

void load_tiles(uint first, uint k_at, uint end, uint step) {
    for (uint i = gl_LocalInvocationIndex; i < ROWS * STEP; i += gl_WorkGroupSize.x) {
        const uvec2 in_tile = uvec2(i / STEP, i % STEP);
        const uint here = step + in_tile.y;
        const bool inside = first + in_tile.x < rows && here < depth;
        q_tile[in_tile.x * ALONG + in_tile.y] = inside ? q[q_places[in_tile.x] + here] : 0.0;
    }
    for (uint i = gl_LocalInvocationIndex; i < KEYS * STEP; i += gl_WorkGroupSize.x) {
        const uvec2 in_tile = uvec2(i / STEP, i % STEP);
        const uint here = step + in_tile.y;
        const bool inside = in_tile.x < end && here < depth;
        tile[in_tile.x * ALONG + in_tile.y] = inside ? KEY(k_at + in_tile.x * k_row, here) : 0.0;
    }
}

void load_values(uint v_at, uint end) {
    for (uint i = gl_LocalInvocationIndex; i < V_KEYS * WIDTH; i += gl_WorkGroupSize.x) {
        const uvec2 in_tile = uvec2(i / WIDTH, i % WIDTH);
        const bool inside = in_tile.x < end && in_tile.y < columns;
        const float value = inside ? VALUE(v_at + in_tile.x * v_row, first_column + in_tile.y) : 0.0;
        tile[i] = value;
        if (is_nan(value) || is_inf(value)) atomicOr(wild[0], 1);
    }
}

// Adds to the sums what a key of the tile of v gives. Places are written as fours, so that drivers read four words at once.
#define ADD_VALUE(key, what) { \
    float values[COLUMNS]; \
    for (uint c = 0u; c < COLUMNS; ++c) values[c] = tile[(key) * WIDTH + lane.x * COLUMNS + c]; \
    for (uint i = 0u; i < OWN_ROWS; ++i) { \
        const uint fours = (lane.y + i * DOWN) * (SCORES / 4u) + turn * (V_KEYS / 4u); \
        const float weight = scores[fours * 4u + key]; \
        for (uint c = 0u; c < COLUMNS; ++c) { \
            const float value = values[c]; \
            sums[i * COLUMNS + c] += what; \
        } \
    } \
}

void attend(uint batch, uint first, uint part) {
    const uint index = gl_LocalInvocationIndex;
    const uvec2 lane = uvec2(index % ACROSS, index / ACROSS);
    const uint own = index / LANES; // the row of which this lane is one in the softmax
    const uint k_at = place_keys(k_offset, batch, k_row, k_head);
    // the first barrier comes before they are read
    if (index == 0u) wild[0] = 0;
    for (uint i = index; i < ROWS; i += gl_WorkGroupSize.x) q_places[i] = place_q(batch, min(first + i, rows - 1u));
    int query[OWN_ROWS];
    uint mask_at[OWN_ROWS];
    float sums[OWN_ROWS * COLUMNS];
    for (uint i = 0u; i < OWN_ROWS; ++i) {
        const uint row = min(first + lane.y + i * DOWN, rows - 1u);
        query[i] = query_of(batch, row);
        mask_at[i] = find_mask(batch, row);
    }
    for (uint i = 0u; i < OWN_ROWS * COLUMNS; ++i) sums[i] = 0.0;
    float largest = -INFINITY;
    float total = 0.0;
    const uvec2 seen = seen_keys(batch, first, ROWS, part);
    for (uint start = seen.x; start < seen.y; start += KEYS) {
        const uint count = min(KEYS, seen.y - start);
        float products[OWN_ROWS * OWN_KEYS];
        for (uint i = 0u; i < OWN_ROWS * OWN_KEYS; ++i) products[i] = 0.0;
        for (uint step = 0u; step < depth; step += STEP) {
            barrier(); // the tiles of the step before have been read
            load_tiles(first, k_at + start * k_row, count, step);
            barrier();
            for (uint four = 0u; four < STEP / 4u; ++four) {
                for (uint s = 0u; s < 4u; ++s) {
                    float left[OWN_ROWS];
                    for (uint i = 0u; i < OWN_ROWS; ++i) left[i] = q_tile[((lane.y + i * DOWN) * (ALONG / 4u) + four) * 4u + s];
                    for (uint j = 0u; j < OWN_KEYS; ++j) {
                        const float right = tile[((lane.x + j * ACROSS) * (ALONG / 4u) + four) * 4u + s];
                        for (uint i = 0u; i < OWN_ROWS; ++i) products[i * OWN_KEYS + j] += left[i] * right;
                    }
                }
            }
        }
        barrier(); // the scores of the keys before have been read
        for (uint i = 0u; i < OWN_ROWS; ++i) {
            for (uint j = 0u; j < OWN_KEYS; ++j) {
                const uint key = lane.x + j * ACROSS;
                const float product = products[i * OWN_KEYS + j];
                const float score = finish_score(product, query[i], mask_at[i], start + key, start + count);
                scores[(lane.y + i * DOWN) * SCORES + key] = score;
            }
        }
        barrier();
        const float before = largest;
        for (uint key = index % LANES; key < KEYS; key += LANES) largest = larger(largest, scores[own * SCORES + key]);
        lanes[index] = largest;
        barrier();
        for (uint i = 0u; i < LANES; ++i) largest = larger(largest, lanes[own * LANES + i]);
        const float factor = shrink(before, largest);
        total *= factor;
        for (uint key = index % LANES; key < KEYS; key += LANES) {
            const float weight = weigh(scores[own * SCORES + key], largest);
            scores[own * SCORES + key] = weight;
            total += weight;
        }
        if (index % LANES == 0u) state[own] = factor;
        barrier();
        for (uint i = 0u; i < OWN_ROWS; ++i) {
            const float by = state[lane.y + i * DOWN];
            for (uint c = 0u; c < COLUMNS; ++c) sums[i * COLUMNS + c] = by == 0.0 ? 0.0 : sums[i * COLUMNS + c] * by;
        }
        const uint v_at = place_keys(v_offset, batch, v_row, v_head) + start * v_row;
        for (uint turn = 0u; turn * V_KEYS < count; ++turn) {
            const uint first_key = turn * V_KEYS;
            if (turn > 0u) barrier(); // the values before have been read
            load_values(v_at + first_key * v_row, count - first_key);
            barrier();
            if (wild[0] == 0) { // of keys that are not there the weights are 0, and the values
                for (uint four = 0u; four < V_KEYS / 4u; ++four) {
                    for (uint key = 0u; key < 4u; ++key) ADD_VALUE(four * 4u + key, weight * value)
                }
            } else {
                const uint end = min(V_KEYS, count - first_key);
                for (uint key = 0u; key < end; ++key) ADD_VALUE(key, weight == 0.0 ? 0.0 : weight * value)
            }
        }
    }
    barrier();
    lanes[index] = total;
    if (index % LANES == 0u) state[own] = largest;
    barrier();
    for (uint i = 0u; i < OWN_ROWS; ++i) {
        const uint in_tile = lane.y + i * DOWN;
        const uint row = first + in_tile;
        if (row < rows) {
            float whole = 0.0;
            for (uint l = 0u; l < LANES; ++l) whole += lanes[in_tile * LANES + l];
            const uint at = place_result(batch, row, part);
            for (uint c = 0u; c < COLUMNS; ++c) {
                const uint column = lane.x * COLUMNS + c;
                if (column < columns) {
                    const float value = sums[i * COLUMNS + c];
                    result[at + first_column + column] = WHOLE == 0u ? value : whole == 0.0 ? uintBitsToFloat(NONE_SEEN) : value / whole;
                }
            }
            if (WHOLE == 0u && lane.x == 0u) {
                result[place_state(at)] = state[in_tile];
                result[place_state(at) + 1u] = whole;
            }
        }
    }
    barrier(); // the next tile writes lanes and state
}

void main() {
    const uint tiles = tiles_of(ROWS);
    for (uint part = gl_WorkGroupID.y; part < count_parts(); part += gl_NumWorkGroups.y) {
        for (uint tile = first_tile + gl_WorkGroupID.x; tile < end_tile; tile += gl_NumWorkGroups.x) {
            attend(tile / tiles, tile % tiles * ROWS, part);
        }
    }
}
