#version 450
// result = softmax(q k^T * scale) v for every head and few queries, over the first kv_len[batch] keys and the new ones behind them.
// q: (batch, heads * queries, depth), k: (batch, keys, depth), v: (batch, keys, columns), kv_len: one number, (batch), or (batch, 2 or 3) with slots and past_len,
// k_new, v_new: (batch, new_keys, ..), partial: (batch, rows, parts, columns + 4), counters: (tiles), 0 before and after; result: as q with columns.
// One workgroup computes a tile of rows over a part of the keys. Of several, the last one that arrives combines the parts, and sets
// the counter of its tile to 0 again. For GPUs with the Vulkan memory model at device scope.
// Source: Dao et al., Flash-Decoding for long-context inference, 2023; the Vulkan specification, appendix Memory Model.
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_memory_scope_semantics : require
#pragma use_vulkan_memory_model
layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint ROWS = 4; // of q in a tile: 1, 2, 4 or 8
layout(constant_id = 4) const uint DEPTH = 8; // of q and k, in eights
layout(constant_id = 5) const uint COLUMNS = 16; // of v, in fours
layout(constant_id = 6) const uint SOFTCAP = 0;
layout(constant_id = 7) const uint FULLY_MASKED = 0; // the bits of the result of a query that sees no key
layout(constant_id = 8) const uint CHUNK = 0; // cached keys are seen from a multiple of it on; 0: all
#include "float_math.glsl"
#define KVCACHE

#ifdef Q8_0_KV
#define EIGHT_LOADED uint
#define FOUR_LOADED uint
#elif defined(FP16_KV)
#define EIGHT_LOADED uvec4
#define FOUR_LOADED uvec2
#else
#define EIGHT_LOADED vec4
#define FOUR_LOADED vec4
#endif
vec4 as_vec4(vec4 values) { return values; }
layout(set = 0, binding = 0) readonly buffer Q { vec4 q[]; };
layout(set = 0, binding = 1) readonly buffer K { EIGHT_LOADED k[]; };
layout(set = 0, binding = 2) readonly buffer V { FOUR_LOADED v[]; };
layout(set = 0, binding = 3) readonly buffer KvLen { int kv_len[]; };
layout(set = 0, binding = 4) readonly buffer KNew { vec4 k_new[]; };
layout(set = 0, binding = 5) readonly buffer VNew { vec4 v_new[]; };
layout(set = 0, binding = 6) devicecoherent buffer Partial { vec4 partial[]; };
layout(set = 0, binding = 7) devicecoherent buffer Counters { uint counters[]; };
layout(set = 0, binding = 8) writeonly buffer Result { vec4 result[]; };
layout(push_constant) uniform Push {
    uint q_offset;
    uint k_offset;
    uint v_offset;
    uint kv_len_offset;
    uint k_new_offset;
    uint v_new_offset;
    uint partial_offset;
    uint counters_offset;
    uint result_offset;
    uint tiles; // of rows, of all batches
    uint rows; // of q in one batch: all heads that share keys, one behind the other
    uint queries;
    uint keys;
    uint new_keys;
    uint heads; // of keys: batch = index of the batch axis * heads + head
    uint kv_len_stride; // 0: one number for all examples; else a number, a slot if there are slots, and past_len if it varies
    uint slots; // of the cache
    uint parts; // the most parts of the keys
    uint q_row; // words from one query to the next, and from one head to the next
    uint q_head;
    uint k_row;
    uint k_head;
    uint v_row;
    uint v_head;
    uint result_row;
    uint result_head;
    int first_visible; // query i sees the keys i + first_visible .. i + last_visible, further by the number of keys in use
    int last_visible;
    float scale;
    float softcap;
};
#include "attention_keys.glsl"
#define KV_LEN_AT kv_len_offset
#define ARE_NEW false
#include "attention_slots.glsl"
#include "attention_places.glsl"
#include "attention_softmax.glsl"

const uint LOCAL = gl_WorkGroupSize.x;
const uint SLICES = 2u; // of the depth of a key
const uint KEYS = LOCAL; // at a time
const uint LANES = LOCAL / ROWS; // of one row, in the softmax
const uint GROUPS = LOCAL / COLUMNS; // of lanes: each sums every GROUPS-th key
const uint SUMMED = (ROWS + 1u) / 2u; // rows whose sums are reduced at a time
const uint UNSPLIT = 256u; // keys up to which there is one part
const uint LEAST = 64u; // keys of a part
const uint MOST_PARTS = KEYS;
const uint ROW = COLUMNS + 1u; // vec4s of a part: its sums, then its largest score and the total of its weights
shared vec4 q_tile[ROWS * DEPTH * 2u];
shared float scores[4u * SUMMED * KEYS]; // then weights, sums and the states of parts
shared float lanes[gl_WorkGroupSize.x];
shared float state[ROWS];
shared int is_last[4]; // as non_finite of attention_tiled.glsl

struct Eight {
    vec4 low;
    vec4 high;
};

// Values 8 i .. 8 i + 7 of the row that begins at a place.
#ifdef Q8_0_KV
Eight eight_of_key(uint row, uint i) {
    const float by = q8_scale(k[SCALES_AT(row, 2u * i)], 2u * i);
    return Eight(q8_codes(k[CODES_AT(row, 2u * i)]) * by, q8_codes(k[CODES_AT(row, 2u * i + 1u)]) * by);
}
vec4 four_of_value(uint row, uint i) { return VALUE_VEC4(row, i); }
#elif defined(FP16_KV)
Eight eight_of_key(uint row, uint i) {
    const uvec4 words = k[row / 8u + i];
    return Eight(fp16x4_to_vec4(words.xy), fp16x4_to_vec4(words.zw));
}
vec4 four_of_value(uint row, uint i) { return VALUE_VEC4(row / 4u, i); }
#else
Eight eight_of_key(uint row, uint i) { return Eight(k[row / 4u + 2u * i], k[row / 4u + 2u * i + 1u]); }
vec4 four_of_value(uint row, uint i) { return VALUE_VEC4(row / 4u, i); }
#endif
Eight eight_of_new_key(uint row, uint i) { return Eight(k_new[row / 4u + 2u * i], k_new[row / 4u + 2u * i + 1u]); }

bool is_non_finite(vec4 x) {
    const uvec4 bits = floatBitsToUint(x) & 0x7fffffffu;
    return max(max(bits.x, bits.y), max(bits.z, bits.w)) >= 0x7f800000u;
}

void finish_row(uint batch, uint row, uint column, vec4 sum, float total) {
    const uint at = place_row(result_offset, batch, row, result_row, result_head) / 4u + column;
    result[at] = total == 0.0 ? vec4(uintBitsToFloat(FULLY_MASKED)) : sum / total;
}

uint place_part(uint batch, uint row, uint part) { return partial_offset / 4u + ((batch * rows + row) * parts + part) * ROW; }

// The products of a chunk of keys, from `start` on, of each slice. Keys from `end` on repeat the last one, and are hidden.
void multiply_keys(uint batch, uint start, uint end, uint used) {
    const uint index = gl_LocalInvocationIndex;
    const uint slice = index % SLICES;
    const uint k_at = place_keys(k_offset, batch, k_row, k_head);
    const uint new_at = k_new_offset + batch * new_keys * DEPTH * 8u;
    for (uint own = index / SLICES; own < KEYS; own += LOCAL / SLICES) {
        const uint key = min(start + own, end - 1u);
        float dots[ROWS];
        for (uint r = 0u; r < ROWS; ++r) dots[r] = 0.0;
        for (uint first = 0u; first < DEPTH; first += SLICES) {
            const uint i = min(first + slice, DEPTH - 1u);
            Eight eight;
            if (key < used) eight = eight_of_key(k_at + key * k_row, i);
            else eight = eight_of_new_key(new_at + (key - used) * DEPTH * 8u, i);
            if (first + slice >= DEPTH) eight = Eight(vec4(0.0), vec4(0.0));
            for (uint r = 0u; r < ROWS; ++r) {
                const uint at = (r * DEPTH + i) * 2u;
                dots[r] += dot(q_tile[at], eight.low) + dot(q_tile[at + 1u], eight.high);
            }
        }
        for (uint r = 0u; r < ROWS; ++r) scores[(slice * ROWS + r) * KEYS + own] = dots[r];
    }
}

// All lanes enter each loop and take as many steps: llvmpipe (Mesa 22) ends a loop with barriers around one that some do not enter.

// The total of the weights of a row.
float total_of(uint row) {
    float total = 0.0;
    for (uint l = 0u; l < LANES; ++l) total += lanes[row * LANES + l];
    return total;
}

// The sums of all groups of lanes, for SUMMED rows from `first` on: of row i at vec4 `column`.
vec4 sum_of_groups(uint i, uint column) {
    vec4 sum = vec4(0.0);
    for (uint group = 0u; group < GROUPS; ++group) {
        const uint at = i * 4u * LOCAL + group * COLUMNS + column;
        sum += vec4(scores[at], scores[at + LOCAL], scores[at + 2u * LOCAL], scores[at + 3u * LOCAL]);
    }
    return sum;
}

// used_parts: the parts that hold keys.
void combine_parts(uint batch, uint first, uint used_parts) {
    const uint index = gl_LocalInvocationIndex;
    for (uint begin = 0u; begin < ROWS * used_parts; begin += LOCAL) {
        const uint at = min(begin + index, ROWS * used_parts - 1u);
        const uint row = min(first + at / used_parts, rows - 1u);
        const vec4 own = partial[place_part(batch, row, at % used_parts) + COLUMNS];
        scores[at / used_parts * 2u * MOST_PARTS + at % used_parts] = own.x;
        scores[(at / used_parts * 2u + 1u) * MOST_PARTS + at % used_parts] = own.y;
    }
    barrier();
    const uint own_row = index / LANES * 2u * MOST_PARTS;
    float largest = -INFINITY;
    for (uint part = 0u; part < used_parts; ++part) largest = max(largest, scores[own_row + part]); // never NaN
    barrier();
    for (uint begin = 0u; begin < used_parts; begin += LANES) {
        const uint part = begin + index % LANES;
        const float here = scores[own_row + min(part, used_parts - 1u)];
        if (part < used_parts) scores[own_row + part] = here == largest ? 1.0 : safe_exp(here - largest);
    }
    barrier();
    for (uint begin = 0u; begin < ROWS * COLUMNS; begin += LOCAL) {
        const uint at = min(begin + index, ROWS * COLUMNS - 1u);
        const uint i = at / COLUMNS;
        const uint row = min(first + i, rows - 1u);
        vec4 sum = vec4(0.0);
        float total = 0.0;
        for (uint part = 0u; part < used_parts; ++part) {
            const float weight = scores[i * 2u * MOST_PARTS + part];
            total += scores[(i * 2u + 1u) * MOST_PARTS + part] * weight;
            const vec4 own = partial[place_part(batch, row, part) + at % COLUMNS];
            if (weight != 0.0) sum += own * weight;
        }
        if (begin + index < ROWS * COLUMNS && first + i < rows) finish_row(batch, row, at % COLUMNS, sum, total);
    }
}

void attend(uint batch, uint first, uint tile, uint part, uint used_parts, uvec2 seen, uint used) {
    const uint index = gl_LocalInvocationIndex;
    const uint own = index / LANES; // the row of which this lane is one in the softmax
    const uint own_row = min(first + own, rows - 1u);
    const int query = int(own_row % queries + used) + past_len(batch);
    const uint v_at = place_keys(v_offset, batch, v_row, v_head);
    const uint new_at = v_new_offset + batch * new_keys * COLUMNS * 4u;
    const uint group = index / COLUMNS;
    const uint column = index % COLUMNS;
    for (uint begin = 0u; begin < ROWS * DEPTH * 2u; begin += LOCAL) {
        const uint i = min(begin + index, ROWS * DEPTH * 2u - 1u);
        const uint row = min(first + i / (DEPTH * 2u), rows - 1u);
        q_tile[i] = q[place_row(q_offset, batch, row, q_row, q_head) / 4u + i % (DEPTH * 2u)];
    }
    vec4 sums[ROWS];
    for (uint r = 0u; r < ROWS; ++r) sums[r] = vec4(0.0);
    float largest = -INFINITY;
    float total = 0.0;
    for (uint start = seen.x; start < seen.y; start += KEYS) {
        const uint count = min(KEYS, seen.y - start);
        barrier(); // the tile of q is there, the weights before have been read
        multiply_keys(batch, start, seen.y, used);
        barrier();
        const float before = largest;
        for (uint key = index % LANES; key < KEYS; key += LANES) {
            const uint at = own * KEYS + key;
            const float score = finish_score(scores[at] + scores[at + ROWS * KEYS], query, 0u, start + key, seen.y);
            scores[at] = score;
            largest = larger(largest, score);
        }
        lanes[index] = largest;
        barrier();
        for (uint i = 0u; i < LANES; ++i) largest = larger(largest, lanes[own * LANES + i]);
        const float factor = shrink(before, largest);
        total *= factor;
        for (uint key = index % LANES; key < KEYS; key += LANES) {
            const float weight = weigh(scores[own * KEYS + key], largest);
            scores[own * KEYS + key] = weight;
            total += weight;
        }
        if (index % LANES == 0u) state[own] = factor;
        barrier();
        for (uint r = 0u; r < ROWS; ++r) sums[r] = state[r] == 0.0 ? vec4(0.0) : sums[r] * state[r];
        // Lanes without a key repeat the last one, and add nothing.
        for (uint first_key = 0u; first_key < count; first_key += GROUPS) {
            const uint key = min(first_key + group, count - 1u);
            const bool counts = group < GROUPS && first_key + group < count;
            const uint at = start + key;
            vec4 value;
            if (at < used) value = four_of_value(v_at + at * v_row, column);
            else value = v_new[(new_at + (at - used) * COLUMNS * 4u) / 4u + column];
            const bool is_finite = !is_non_finite(value);
            for (uint r = 0u; r < ROWS; ++r) {
                const float weight = counts ? scores[r * KEYS + key] : 0.0;
                sums[r] += is_finite || weight != 0.0 ? weight * value : vec4(0.0);
            }
        }
    }
    barrier(); // the weights have been read
    lanes[index] = total;
    for (uint r = 0u; r < ROWS; r += SUMMED) {
        if (group < GROUPS) {
            for (uint i = 0u; i < SUMMED; ++i) {
                const vec4 sum = sums[r + i];
                const uint at = i * 4u * LOCAL + index;
                scores[at] = sum.x;
                scores[at + LOCAL] = sum.y;
                scores[at + 2u * LOCAL] = sum.z;
                scores[at + 3u * LOCAL] = sum.w;
            }
        }
        barrier();
        for (uint begin = 0u; begin < SUMMED * COLUMNS; begin += LOCAL) {
            const uint at = min(begin + index, SUMMED * COLUMNS - 1u);
            const uint i = at / COLUMNS;
            const uint row = first + r + i;
            const vec4 sum = sum_of_groups(i, at % COLUMNS);
            const float whole = total_of(r + i);
            if (begin + index < SUMMED * COLUMNS && row < rows) {
                if (used_parts > 1u) partial[place_part(batch, row, part) + at % COLUMNS] = sum;
                else finish_row(batch, row, at % COLUMNS, sum, whole);
            }
        }
        barrier();
    }
    if (used_parts > 1u) {
        const vec4 own_state = vec4(largest, total_of(own), 0.0, 0.0);
        if (index % LANES == 0u && first + own < rows) partial[place_part(batch, first + own, part) + COLUMNS] = own_state;
        // What all lanes have written comes before the release by lane 0; what the last group reads comes after its acquisition.
        const int memory = gl_StorageSemanticsBuffer | gl_StorageSemanticsShared;
        controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, memory, gl_SemanticsAcquireRelease);
        if (index == 0u) {
            const uint at = counters_offset + tile;
            const uint arrived = atomicAdd(counters[at], 1u, gl_ScopeDevice, gl_StorageSemanticsBuffer, gl_SemanticsAcquireRelease);
            is_last[0] = int(arrived + 1u == used_parts);
            if (arrived + 1u == used_parts) atomicStore(counters[at], 0u, gl_ScopeDevice, 0, 0);
        }
        controlBarrier(gl_ScopeWorkgroup, gl_ScopeWorkgroup, memory, gl_SemanticsAcquireRelease);
        if (is_last[0] != 0) combine_parts(batch, first, used_parts);
    }
    barrier(); // the next tile writes shared memory
}

void main() {
    const uint tiles_of_batch = (rows + ROWS - 1u) / ROWS;
    const uint part = gl_WorkGroupID.y;
    for (uint tile = gl_WorkGroupID.x; tile < tiles; tile += gl_NumWorkGroups.x) {
        const uint batch = tile / tiles_of_batch;
        const int used = cached_keys(batch);
        const int all = used + int(new_keys);
        // the keys that any query sees
        const int query = used + past_len(batch);
        const int begin = clamp(query + first_visible, first_cached(used), all);
        const int end = clamp(query + int(queries) + last_visible, begin, all);
        const uint count = uint(end - begin);
        const uint each = count <= UNSPLIT ? max(count, 1u) : max(LEAST, (count + parts - 1u) / parts);
        const uint used_parts = max((count + each - 1u) / each, 1u);
        if (part < used_parts) {
            const uvec2 seen = uint(begin) + min(uvec2(part, part + 1u) * each, uvec2(count));
            attend(batch, tile % tiles_of_batch * ROWS, tile, part, used_parts, seen, uint(used));
        }
    }
}
