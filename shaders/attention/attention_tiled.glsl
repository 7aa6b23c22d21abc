// Attention for GPUs: a group of 4 rows of 32 lanes works on ROWS rows of q, KEYS keys at a time.
// Each lane computes ROWS / 4 rows by two keys of the scores, then ROWS / 4 rows by COLUMNS columns of the sums, from tiles
// of q, k and v in shared memory.
// MIXED: tiles and weights are float16; scores, and the sums of products, stay float32. FP16_ACC: what a tile adds is summed in float16
// first, two products in an instruction.
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint ROWS = 16;
layout(constant_id = 4) const uint COLUMNS = 8;
layout(constant_id = 5) const uint SOFTCAP = 0;
layout(constant_id = 6) const uint IS_BIAS = 0;
layout(constant_id = 7) const uint WHOLE = 1;
layout(constant_id = 8) const uint FULLY_MASKED = 0; // the bits of the result of a query that sees no key
layout(constant_id = 9) const uint CHUNK = 0; // cached keys are seen from a multiple of it on; 0: all
#include "attention.glsl"

#ifdef MIXED
#define TILE float16_t
const uint AT_ONCE = 8u;
#else
#define TILE float
const uint AT_ONCE = 4u; // of a tile that one read of shared memory gives: four words
#endif
#ifdef FP16_ACC
#define TERM f16vec2
#define READ_TERM(from, at) f16vec2((from)[at], (from)[(at) + 1u])
const uint PER_TERM = 2u;
#define BEGIN_TERMS(count) TERM terms[count]; for (uint n = 0u; n < count; ++n) terms[n] = TERM(0.0);
#define MULTIPLIED terms
#define ADDED terms
#define END_PRODUCTS for (uint n = 0u; n < OWN_ROWS * OWN_KEYS; ++n) products[n] += float(terms[n].x) + float(terms[n].y);
#define END_SUMS for (uint n = 0u; n < OWN_ROWS * COLUMNS; ++n) sums[n] += float(terms[n / 2u][n % 2u]);
#else
#define TERM float
#define READ_TERM(from, at) float((from)[at])
const uint PER_TERM = 1u;
#define BEGIN_TERMS(count)
#define MULTIPLIED products
#define ADDED sums
#define END_PRODUCTS
#define END_SUMS
#endif

const uint KEYS = 64u;
const uint STEP = 4u * AT_ONCE; // of depth, through shared memory
const uint ACROSS = 32u;
const uint DOWN = gl_WorkGroupSize.x / ACROSS;
const uint OWN_ROWS = ROWS / DOWN;
const uint OWN_KEYS = KEYS / ACROSS;
const uint LANES = gl_WorkGroupSize.x / ROWS; // of one row, in the softmax
// Four words more per row: eight lanes that read four words each meet different banks.
const uint ALONG = STEP + AT_ONCE;
const uint SCORES = KEYS + 4u;
const uint WEIGHTS = KEYS + AT_ONCE;
const uint WIDTH = ACROSS * COLUMNS; // of v
const uint V_KEYS = KEYS * STEP / WIDTH; // of a tile of v, which takes the place of k's
const uint OWN_TERMS = COLUMNS / PER_TERM; // of a row
shared TILE q_tile[ROWS * ALONG];
shared TILE tile[KEYS * ALONG];
shared float scores[ROWS * SCORES]; // and then weights
#ifdef MIXED
shared TILE weights[ROWS * WEIGHTS];
#define KEEP_WEIGHT(at, weight) weights[at] = TILE(weight);
#else
#define weights scores
#define KEEP_WEIGHT(at, weight)
#endif
shared float lanes[gl_WorkGroupSize.x];
shared float state[ROWS];
shared uint q_places[ROWS];
shared int q_queries[ROWS]; // as query_of tells
// In the first word 1 if a value of v was not finite: from then on keys of weight 0 are left out. Four, as drivers lay arrays
// behind each other, and only of those at whole vec4s they know that four words can be read at once.
// Of int: glslang would give uint the type of mask_strides, with a stride, which shared memory may not have.
shared int non_finite[4];

// Four neighbours of a row, from value `i` on, up to `size`; 0 else. inside: they all are there.
#define READ_FOUR(four, READ, row, i, size, inside) \
    if (inside) { \
        for (uint j = 0u; j < 4u; ++j) four[j] = TILE(READ(row, (i) + j)); \
    } else { \
        for (uint j = 0u; j < 4u; ++j) four[j] = (i) + j < (size) ? TILE(READ(row, (i) + j)) : TILE(0.0); \
    }
#define QUERY(row, i) q[(row) + (i)]
#define OWN_VALUE(row, i) VALUE(row, first_column + (i))
#ifdef NEW_KEYS
#define NEW_KEY(row, i) k_new[(row) + (i)]
#define NEW_VALUE(row, i) v_new[(row) + first_column + (i)]
#define READ_OF(READ, NEW, four, row, i, size, inside) \
    if (segment.is_new) READ_FOUR(four, NEW, row, i, size, inside) else READ_FOUR(four, READ, row, i, size, inside)
#else
#define READ_OF(READ, NEW, four, row, i, size, inside) READ_FOUR(four, READ, row, i, size, inside)
#endif

#ifdef MIXED
// Larger tiles, so what is read goes to them at once: on its way it would take too many registers.
#define LOAD_TILES(segment, k_at, end, step) load_tiles(segment, k_at, end, step);
#define LOAD_VALUES(segment, v_at, end) load_values(segment, v_at, end);
#define FETCH_AHEAD(fetch)

// A step along q and k; keys from `end` on repeat the last one, and are hidden.
void load_tiles(Segment segment, uint k_at, uint end, uint step) {
    const bool inside = step + STEP <= depth;
    for (uint i = gl_LocalInvocationIndex * 4u; i < ROWS * STEP; i += gl_WorkGroupSize.x * 4u) {
        const uvec2 in_tile = uvec2(i / STEP, i % STEP);
        TILE four[4];
        READ_FOUR(four, QUERY, q_places[in_tile.x], step + in_tile.y, depth, inside)
        for (uint j = 0u; j < 4u; ++j) q_tile[in_tile.x * ALONG + in_tile.y + j] = four[j];
    }
    for (uint i = gl_LocalInvocationIndex * 4u; i < KEYS * STEP; i += gl_WorkGroupSize.x * 4u) {
        const uvec2 in_tile = uvec2(i / STEP, i % STEP);
        TILE four[4];
        READ_OF(KEY, NEW_KEY, four, k_at + min(in_tile.x, end - 1u) * segment.k_step, step + in_tile.y, depth, inside)
        for (uint j = 0u; j < 4u; ++j) tile[in_tile.x * ALONG + in_tile.y + j] = four[j];
    }
}

// Those of keys from `end` on repeat the last one, and weigh nothing.
void load_values(Segment segment, uint v_at, uint end) {
    const bool inside = columns == WIDTH;
    for (uint i = gl_LocalInvocationIndex * 4u; i < V_KEYS * WIDTH; i += gl_WorkGroupSize.x * 4u) {
        const uvec2 in_tile = uvec2(i / WIDTH, i % WIDTH);
        TILE four[4];
        READ_OF(OWN_VALUE, NEW_VALUE, four, v_at + min(in_tile.x, end - 1u) * segment.v_step, in_tile.y, columns, inside)
        bool is_non_finite = false;
        for (uint j = 0u; j < 4u; ++j) {
            tile[i + j] = four[j];
            is_non_finite = is_non_finite || is_nan(float(four[j])) || is_inf(float(four[j]));
        }
        if (is_non_finite) atomicOr(non_finite[0], 1);
    }
}
#else
// What an invocation reads of a step: q's and k's values, or v's in place of k's, on their way to the tiles. It is fetched before the
// step before is computed, so that memory answers meanwhile.
#define LOAD_TILES(segment, k_at, end, step) put_tiles();
#define LOAD_VALUES(segment, v_at, end) put_values();
#define FETCH_AHEAD(fetch) fetch;

const uint Q_READS = (ROWS * STEP + gl_WorkGroupSize.x * 4u - 1u) / (gl_WorkGroupSize.x * 4u);
const uint READS = (KEYS * STEP + gl_WorkGroupSize.x * 4u - 1u) / (gl_WorkGroupSize.x * 4u);
const bool EVEN = KEYS * STEP % (gl_WorkGroupSize.x * 4u) == 0u; // all invocations read the same number
TILE q_read[Q_READS * 4u];
TILE read[READS * 4u];

// The element of a tile that read `i` begins with.
uint own_read(uint i) { return (gl_LocalInvocationIndex + i * gl_WorkGroupSize.x) * 4u; }

// A step along q and k; keys from `end` on repeat the last one, and are hidden.
void fetch_tiles(Segment segment, uint k_at, uint end, uint step) {
    const bool inside = step + STEP <= depth;
    [[unroll]] for (uint i = 0u; i < Q_READS; ++i) {
        const uvec2 in_tile = uvec2(min(own_read(i) / STEP, ROWS - 1u), own_read(i) % STEP);
        TILE four[4];
        READ_FOUR(four, QUERY, q_places[in_tile.x], step + in_tile.y, depth, inside)
        [[unroll]] for (uint j = 0u; j < 4u; ++j) q_read[i * 4u + j] = four[j];
    }
    [[unroll]] for (uint i = 0u; i < READS; ++i) {
        const uvec2 in_tile = uvec2(own_read(i) / STEP, own_read(i) % STEP);
        TILE four[4];
        READ_OF(KEY, NEW_KEY, four, k_at + min(in_tile.x, end - 1u) * segment.k_step, step + in_tile.y, depth, inside)
        [[unroll]] for (uint j = 0u; j < 4u; ++j) read[i * 4u + j] = four[j];
    }
}

void put_tiles() {
    [[unroll]] for (uint i = 0u; i < Q_READS; ++i) {
        const uvec2 in_tile = uvec2(own_read(i) / STEP, own_read(i) % STEP);
        if (in_tile.x < ROWS) {
            [[unroll]] for (uint j = 0u; j < 4u; ++j) q_tile[in_tile.x * ALONG + in_tile.y + j] = q_read[i * 4u + j];
        }
    }
    [[unroll]] for (uint i = 0u; i < READS; ++i) {
        const uvec2 in_tile = uvec2(own_read(i) / STEP, own_read(i) % STEP);
        if (EVEN || in_tile.x < KEYS) {
            [[unroll]] for (uint j = 0u; j < 4u; ++j) tile[in_tile.x * ALONG + in_tile.y + j] = read[i * 4u + j];
        }
    }
}

// Those of keys from `end` on repeat the last one, and weigh nothing.
void fetch_values(Segment segment, uint v_at, uint end) {
    const bool inside = columns == WIDTH;
    [[unroll]] for (uint i = 0u; i < READS; ++i) {
        const uvec2 in_tile = uvec2(own_read(i) / WIDTH, own_read(i) % WIDTH);
        TILE four[4];
        READ_OF(OWN_VALUE, NEW_VALUE, four, v_at + min(in_tile.x, end - 1u) * segment.v_step, in_tile.y, columns, inside)
        [[unroll]] for (uint j = 0u; j < 4u; ++j) read[i * 4u + j] = four[j];
    }
}

void put_values() {
    bool is_non_finite = false;
    [[unroll]] for (uint i = 0u; i < READS; ++i) {
        if (!EVEN && own_read(i) >= KEYS * STEP) break;
        [[unroll]] for (uint j = 0u; j < 4u; ++j) {
            const TILE value = read[i * 4u + j];
            tile[own_read(i) + j] = value;
            is_non_finite = is_non_finite || is_nan(float(value)) || is_inf(float(value));
        }
    }
    if (is_non_finite) atomicOr(non_finite[0], 1);
}
#endif

// The first step of the keys from `next` on.
void fetch_next(uint batch, uint next, uint end) {
    const Segment segment = segment_of(batch, next);
    FETCH_AHEAD(fetch_tiles(segment, segment.k_at + next * segment.k_step, min(KEYS, min(end, segment.end) - next), 0u))
}

// Adds to the sums what a key of the tile of v gives. Places are written as multiples of what is read at once.
#define ADD_VALUE(key) { \
    TERM values[OWN_TERMS]; \
    for (uint c = 0u; c < OWN_TERMS; ++c) values[c] = READ_TERM(tile, (key) * WIDTH + lane.x * COLUMNS + c * PER_TERM); \
    for (uint i = 0u; i < OWN_ROWS; ++i) { \
        const uint from = (lane.y + i * DOWN) * (WEIGHTS / AT_ONCE) + pass * (V_KEYS / AT_ONCE); \
        const TERM weight = TERM(weights[from * AT_ONCE + key]); \
        for (uint c = 0u; c < OWN_TERMS; ++c) ADDED[i * OWN_TERMS + c] += weight * values[c]; \
    } \
}

void attend(uint batch, uint first, uint part) {
    const uint index = gl_LocalInvocationIndex;
    const uvec2 lane = uvec2(index % ACROSS, index / ACROSS);
    const uint own = index / LANES; // the row of which this lane is one in the softmax
    if (index == 0u) non_finite[0] = 0;
    for (uint i = index; i < ROWS; i += gl_WorkGroupSize.x) {
        const uint row = min(first + i, rows - 1u);
        q_places[i] = place_q(batch, row);
        q_queries[i] = query_of(batch, row);
    }
    uint mask_at[OWN_ROWS];
    float sums[OWN_ROWS * COLUMNS];
    for (uint i = 0u; i < OWN_ROWS; ++i) {
        mask_at[i] = find_mask(batch, min(first + lane.y + i * DOWN, rows - 1u));
    }
    for (uint i = 0u; i < OWN_ROWS * COLUMNS; ++i) sums[i] = 0.0;
    float largest = -INFINITY;
    float total = 0.0;
    const uvec2 seen = visible_keys(batch, first, ROWS, part);
    barrier(); // the places of q are written
    Segment segment = segment_of(batch, seen.x);
    uint count = min(KEYS, min(seen.y, segment.end) - min(seen.x, seen.y));
    FETCH_AHEAD(if (seen.x < seen.y) fetch_tiles(segment, segment.k_at + seen.x * segment.k_step, count, 0u))
    uint next = seen.x;
    for (uint start = seen.x; start < seen.y; start = next) {
        segment = segment_of(batch, start);
        count = min(KEYS, min(seen.y, segment.end) - start);
        next = start + count;
        const uint k_at = segment.k_at + start * segment.k_step;
        const uint v_at = segment.v_at + start * segment.v_step;
        float products[OWN_ROWS * OWN_KEYS];
        for (uint i = 0u; i < OWN_ROWS * OWN_KEYS; ++i) products[i] = 0.0;
        for (uint step = 0u; step < depth; step += STEP) {
            barrier(); // the tiles of the step before have been read
            LOAD_TILES(segment, k_at, count, step)
            barrier();
            FETCH_AHEAD(if (step + STEP < depth) fetch_tiles(segment, k_at, count, step + STEP))
            BEGIN_TERMS(OWN_ROWS * OWN_KEYS)
            for (uint block = 0u; block < STEP / AT_ONCE; ++block) {
                for (uint s = 0u; s < AT_ONCE; s += PER_TERM) {
                    TERM left[OWN_ROWS];
                    for (uint i = 0u; i < OWN_ROWS; ++i) {
                        left[i] = READ_TERM(q_tile, ((lane.y + i * DOWN) * (ALONG / AT_ONCE) + block) * AT_ONCE + s);
                    }
                    for (uint j = 0u; j < OWN_KEYS; ++j) {
                        const TERM right = READ_TERM(tile, ((lane.x + j * ACROSS) * (ALONG / AT_ONCE) + block) * AT_ONCE + s);
                        for (uint i = 0u; i < OWN_ROWS; ++i) MULTIPLIED[i * OWN_KEYS + j] += left[i] * right;
                    }
                }
            }
            END_PRODUCTS
        }
        FETCH_AHEAD(fetch_values(segment, v_at, count))
        barrier(); // the scores of the keys before have been read
        for (uint i = 0u; i < OWN_ROWS; ++i) {
            for (uint j = 0u; j < OWN_KEYS; ++j) {
                const uint key = lane.x + j * ACROSS;
                const float product = products[i * OWN_KEYS + j];
                const float score = finish_score(product, q_queries[lane.y + i * DOWN], mask_at[i], start + key, start + count);
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
            KEEP_WEIGHT(own * WEIGHTS + key, weight)
            total += weight;
        }
        if (index % LANES == 0u) state[own] = factor;
        barrier();
        for (uint i = 0u; i < OWN_ROWS; ++i) {
            const float by = state[lane.y + i * DOWN];
            for (uint c = 0u; c < COLUMNS; ++c) sums[i * COLUMNS + c] = by == 0.0 ? 0.0 : sums[i * COLUMNS + c] * by;
        }
        for (uint pass = 0u; pass * V_KEYS < count; ++pass) {
            const uint first_key = pass * V_KEYS, next_key = first_key + V_KEYS;
            if (pass > 0u) barrier(); // the values before have been read
            LOAD_VALUES(segment, v_at + first_key * segment.v_step, count - first_key)
            barrier();
            if (next_key < count) {
                FETCH_AHEAD(fetch_values(segment, v_at + next_key * segment.v_step, count - next_key))
            } else if (next < seen.y) {
                FETCH_AHEAD(fetch_next(batch, next, seen.y))
            }
            if (non_finite[0] == 0) {
                BEGIN_TERMS(OWN_ROWS * OWN_TERMS)
                for (uint block = 0u; block < V_KEYS / AT_ONCE; ++block) {
                    for (uint key = 0u; key < AT_ONCE; ++key) ADD_VALUE(block * AT_ONCE + key)
                }
                END_SUMS
            } else {
                [[dont_unroll]] for (uint key = 0u; key < V_KEYS; ++key) { // seldom, so it is to be short
                    for (uint i = 0u; i < OWN_ROWS; ++i) {
                        const float weight = scores[(lane.y + i * DOWN) * SCORES + first_key + key];
                        for (uint c = 0u; c < COLUMNS; ++c) {
                            const float value = float(tile[key * WIDTH + lane.x * COLUMNS + c]);
                            sums[i * COLUMNS + c] += weight == 0.0 ? 0.0 : weight * value;
                        }
                    }
                }
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
                    result[at + first_column + column] = WHOLE == 0u ? value : whole == 0.0 ? uintBitsToFloat(FULLY_MASKED) : value / whole;
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
