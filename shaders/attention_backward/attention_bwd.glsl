// The gradients of attention for GPUs: a group of 4 rows of 32 lanes has ROWS rows of its own, queries or keys, and goes along
// the others, OTHERS at a time. Scores and their gradients are made again for each of four TARGETs:
//   0  the largest score of each query, one over its total of weights, the mean of g v^T by them, counted from that of the largest
//      score, so that it keeps its digits where this has nearly all weight, and that
//   1  dq = grad_scores k    2  dk = grad_scores^T q    3  dv = weights^T g
// own_a and other_a are q and k, own_b and other_b g and v, or the other way round where keys are the group's own.
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint ROWS = 16;
layout(constant_id = 4) const uint COLUMNS = 4;
layout(constant_id = 5) const uint SOFTCAP = 0;
layout(constant_id = 6) const uint IS_BIAS = 0;
layout(constant_id = 7) const uint TARGET = 1;

const bool OF_KEYS = TARGET >= 2u;
const uint OTHERS = 64u;
const uint STEP = 16u; // of depth, through shared memory
const uint ACROSS = 32u;
const uint DOWN = gl_WorkGroupSize.x / ACROSS;
const uint OWN_ROWS = ROWS / DOWN;
const uint OWN_OTHERS = OTHERS / ACROSS;
// Four words more per row: eight lanes that read four words each meet different banks.
const uint ALONG = STEP + 4u;
const uint SCORES = OTHERS + 4u;
const uint WIDTH = ACROSS * COLUMNS;
const uint LANES = gl_WorkGroupSize.x / ROWS; // of one row, among its scores
const uint PASS_ROWS = OTHERS * STEP / WIDTH; // others of a tile of their columns
shared float own_tile[ROWS * ALONG];
shared float tile[OTHERS * ALONG];
shared float scores[ROWS * SCORES];
shared float grad_scores[ROWS * SCORES];

#include "attention_scores.glsl"

float larger(float largest, float score) { return mix(score, largest, score < largest); }

// x: the score of a product of q and k, -infinity where the key is hidden. y: what its gradient is multiplied by.
vec2 finish(float product, uint batch, uint row, uint key, bool there) {
    vec2 made = vec2(product * scale, scale);
    if (SOFTCAP != 0u) {
        const float bent = safe_tanh(made.x / softcap);
        made = vec2(softcap * bent, scale * (1.0 - bent * bent));
    }
    const int query = int(row % queries);
    bool hidden = any(bvec3(!there, int(key) < query + first_visible, int(key) > query + last_visible));
#ifdef MASKED
    const uint word = mask[find_mask(batch, min(row, rows - 1u)) + min(key, keys - 1u) * mask_strides[3]];
    if (IS_BIAS != 0u) made.x += uintBitsToFloat(word);
    hidden = any(bvec2(hidden, word == (IS_BIAS != 0u ? 0xff800000u : 0u)));
#endif
    return vec2(mix(made.x, -INFINITY, hidden), made.y);
}

// First and end of the others that any of the group's own rows meets.
uvec2 others_of(uint first, uint own_rows, uint other_rows) {
    const int last = int(min(first + ROWS, own_rows)) - 1;
    const bool wraps = rows != queries && (OF_KEYS || first / queries != uint(last) / queries);
    if (wraps) return uvec2(0u, other_rows);
    const ivec2 own = OF_KEYS ? ivec2(first, last) : ivec2(first % queries, last - int(first) + int(first % queries));
    const ivec2 reach = OF_KEYS ? ivec2(-last_visible, -first_visible) : ivec2(first_visible, last_visible);
    return uvec2(clamp(own + reach + ivec2(0, 1), ivec2(0), ivec2(other_rows)));
}

// Products of the group's own rows and of others, from tiles in shared memory.
#define MULTIPLY(PRODUCTS, OWN, OTHER, size) \
    for (uint i = 0u; i < OWN_ROWS * OWN_OTHERS; ++i) PRODUCTS[i] = 0.0; \
    for (uint step = 0u; step < size; step += STEP) { \
        barrier(); /* the tiles of the step before have been read */ \
        for (uint i = index; i < ROWS * STEP; i += gl_WorkGroupSize.x) { \
            const uvec2 at = uvec2(i / STEP, i % STEP); \
            const bool inside = first + at.x < own_rows && step + at.y < size; \
            const uint place = OWN##_offset + (batch * own_rows + first + at.x) * size + step + at.y; \
            own_tile[at.x * ALONG + at.y] = inside ? OWN[place] : 0.0; \
        } \
        for (uint i = index; i < OTHERS * STEP; i += gl_WorkGroupSize.x) { \
            const uvec2 at = uvec2(i / STEP, i % STEP); \
            const bool inside = at.x < count && step + at.y < size; \
            const uint place = OTHER##_offset + (batch * other_rows + start + at.x) * size + step + at.y; \
            tile[at.x * ALONG + at.y] = inside ? OTHER[place] : 0.0; \
        } \
        barrier(); \
        for (uint four = 0u; four < STEP / 4u; ++four) { \
            for (uint s = 0u; s < 4u; ++s) { \
                float left[OWN_ROWS]; \
                for (uint i = 0u; i < OWN_ROWS; ++i) left[i] = own_tile[((lane.y + i * DOWN) * (ALONG / 4u) + four) * 4u + s]; \
                for (uint j = 0u; j < OWN_OTHERS; ++j) { \
                    const float right = tile[((lane.x + j * ACROSS) * (ALONG / 4u) + four) * 4u + s]; \
                    for (uint i = 0u; i < OWN_ROWS; ++i) PRODUCTS[i * OWN_OTHERS + j] += left[i] * right; \
                } \
            } \
        } \
    }

#define KEEP(to, PRODUCTS) \
    for (uint i = 0u; i < OWN_ROWS; ++i) { \
        for (uint j = 0u; j < OWN_OTHERS; ++j) { \
            to[(lane.y + i * DOWN) * SCORES + lane.x + j * ACROSS] = PRODUCTS[i * OWN_OTHERS + j]; \
        } \
    }

// Adds to the sums what others give, by the scores: their columns from first_column on.
#define ADD(OTHER, size) \
    for (uint pass = 0u; pass * PASS_ROWS < count; ++pass) { \
        barrier(); /* the scores are there, and the tile before has been read */ \
        for (uint i = index; i < PASS_ROWS * WIDTH; i += gl_WorkGroupSize.x) { \
            const uvec2 at = uvec2(i / WIDTH, i % WIDTH); \
            const bool inside = pass * PASS_ROWS + at.x < count && at.y < width; \
            const uint row = batch * other_rows + start + pass * PASS_ROWS + at.x; \
            tile[i] = inside ? OTHER[OTHER##_offset + row * size + first_column + at.y] : 0.0; \
        } \
        barrier(); \
        for (uint four = 0u; four < PASS_ROWS / 4u; ++four) { \
            for (uint s = 0u; s < 4u; ++s) { \
                for (uint i = 0u; i < OWN_ROWS; ++i) { \
                    const uint fours = (lane.y + i * DOWN) * (SCORES / 4u) + pass * (PASS_ROWS / 4u) + four; \
                    const float factor = scores[fours * 4u + s]; \
                    for (uint c = 0u; c < COLUMNS; ++c) { \
                        sums[i * COLUMNS + c] += factor * tile[(four * 4u + s) * WIDTH + lane.x * COLUMNS + c]; \
                    } \
                } \
            } \
        } \
    }

// Takes the products of a tile into what is known of a row: its largest score, and the sums of weights and of weights times grad_scores.
void take(inout vec4 known, vec2 score, float product) {
    const float now = larger(known.x, score.x);
    const float weight = weigh(score.x, now);
    const float pivot = score.x < known.x ? known.w : product;
    const vec2 before = vec2(known.y, known.z + known.y * (known.w - pivot)) * weigh(known.x, now);
    known = vec4(now, before + vec2(weight, weight == 0.0 ? 0.0 : weight * (product - pivot)), pivot);
}

// Puts together what the lanes of a row know, and writes it.
void store_state(uint batch, uint row, vec4 known) {
    const uint index = gl_LocalInvocationIndex;
    barrier(); // the tile has been read
    for (uint n = 0u; n < 4u; ++n) tile[n * gl_WorkGroupSize.x + index] = known[n];
    barrier();
    if (index % LANES == 0u && row < rows) {
        float largest = -INFINITY;
        float pivot = 0.0;
        for (uint l = 0u; l < LANES; ++l) {
            if (tile[index + l] > largest) pivot = tile[3u * gl_WorkGroupSize.x + index + l];
            largest = larger(largest, tile[index + l]);
        }
        vec2 sums = vec2(0.0);
        for (uint l = 0u; l < LANES; ++l) {
            const uint at = gl_WorkGroupSize.x + index + l;
            const float along = tile[gl_WorkGroupSize.x + at] + tile[at] * (tile[2u * gl_WorkGroupSize.x + at] - pivot);
            sums += vec2(tile[at], along) * weigh(tile[index + l], largest);
        }
        const uint at = result_offset + (batch * rows + row) * 4u;
        const float by = sums.x == 0.0 ? 0.0 : 1.0 / sums.x;
        result[at] = largest;
        result[at + 1u] = by;
        result[at + 2u] = sums.y * by;
        result[at + 3u] = pivot;
    }
}

// The weight of a score, or for dq and dk what becomes of its slope.
float factor_of(vec2 score, float product, uint batch, uint row) {
    const uint at = state_offset + (batch * rows + min(row, rows - 1u)) * 4u;
    const float weight = score.x == -INFINITY ? 0.0 : weigh(score.x, state[at]) * state[at + 1u];
    if (TARGET == 3u) return weight;
    return weight == 0.0 ? 0.0 : weight * ((product - state[at + 3u]) - state[at + 2u]) * score.y;
}

void pull(uint batch, uint first, uint own_rows, uint other_rows) {
    const uint index = gl_LocalInvocationIndex;
    const uvec2 lane = uvec2(index % ACROSS, index / ACROSS);
    const uint own = first + index / LANES; // the row of which this lane is one among the scores
    float sums[OWN_ROWS * COLUMNS];
    for (uint i = 0u; i < OWN_ROWS * COLUMNS; ++i) sums[i] = 0.0;
    vec4 known = vec4(-INFINITY, 0.0, 0.0, 0.0);
    const uvec2 met = others_of(first, own_rows, other_rows);
    for (uint start = met.x; start < met.y; start += OTHERS) {
        const uint count = min(OTHERS, met.y - start);
        float products[OWN_ROWS * OWN_OTHERS];
        MULTIPLY(products, own_a, other_a, depth)
        barrier(); // the scores before have been read
        KEEP(scores, products)
        if (TARGET != 3u) {
            MULTIPLY(products, own_b, other_b, columns)
            KEEP(grad_scores, products)
        }
        barrier();
        for (uint i = index % LANES; i < count; i += LANES) {
            const uint at = index / LANES * SCORES + i;
            const uint row = OF_KEYS ? start + i : own;
            const vec2 score = finish(scores[at], batch, row, OF_KEYS ? own : start + i, own < own_rows);
            if (TARGET == 0u) {
                take(known, score, grad_scores[at]);
            } else {
                scores[at] = factor_of(score, grad_scores[at], batch, row);
            }
        }
        if (TARGET == 1u || TARGET == 2u) {
            ADD(other_a, depth)
        } else if (TARGET == 3u) {
            ADD(other_b, columns)
        }
    }
    if (TARGET == 0u) store_state(batch, own, known);
    for (uint i = 0u; i < OWN_ROWS; ++i) {
        const uint row = first + lane.y + i * DOWN;
        const uint at = result_offset + batch * result_step + row * (TARGET == 3u ? columns : depth);
        for (uint c = 0u; c < COLUMNS; ++c) {
            const uint column = lane.x * COLUMNS + c;
            if (TARGET != 0u && row < own_rows && column < width) result[at + column] = sums[i * COLUMNS + c];
        }
    }
    barrier(); // the next tile writes what has been read here
}

void main() {
    const uint own_rows = OF_KEYS ? keys : rows;
    const uint tiles = (own_rows + ROWS - 1u) / ROWS;
    for (uint number = first_tile + gl_WorkGroupID.x; number < end_tile; number += gl_NumWorkGroups.x) {
        pull(number / tiles, number % tiles * ROWS, own_rows, OF_KEYS ? rows : keys);
    }
}
