// Shared by the attention kernels: which keys a row sees, scores, and the steps of the online softmax.
// A row of q, one query of one head, is worked on in tiles of rows, and its keys in parts.
// With WHOLE 0 a part leaves the sums, the largest score and the total of its weights for attention_combine.comp.
// Such a part ends with four words: the largest score, the total and two of no meaning.
// A key of weight 0 counts as not there, whatever it holds; a row that sees no key is 0.
// With KVCACHE only the first keys count, as many as the example has in use, and places in the text are counted from there.
// With are_new, too, these are the keys behind those in use: all count, and places are counted from the first of them.
// With FP16_ROWS q, new keys and values and the whole result are float16, too, two in a word; places count values.
// With NEW_KEYS all keys are one text: those in use, then new ones in buffers of their own, and own_parts are `parts`.

#ifdef NEW_KEYS
#define own_parts parts
const uint are_new = 0u;
#else
const uint new_keys = 0u;
#endif
#include "attention_keys.glsl"
#ifdef FP16_ROWS
#define ROW_PLACE(offset) (2u * (offset))
#else
#define ROW_PLACE(offset) (offset)
#endif

#ifdef KVCACHE
// KV_LEN_AFTER_Q: the numbers lie behind q, as this device binds only four buffers.
#ifdef KV_LEN_AFTER_Q
#define KV_LEN_AT (q_offset + kv_len_after_q)
#else
#define KV_LEN_AT kv_len_offset
#endif
#define ARE_NEW (are_new != 0u)
#include "attention_slots.glsl"
#else
uint slot_of(uint batch) { return batch / heads; }
#endif

#include "attention_places.glsl"

uint place_q(uint batch, uint row) { return place_row(ROW_PLACE(q_offset), batch, row, q_row, q_head); }

uint tiles_of(uint tile_rows) { return (rows + tile_rows - 1u) / tile_rows; }

#ifdef KVCACHE
// The key beside the first query: queries are counted from there.
int first_query(uint batch) { return (are_new != 0u ? 0 : cached_keys(batch)) + past_len(batch); }

int query_of(uint batch, uint row) { return int(row % queries) + first_query(batch); }

uint count_parts() { return own_parts; }

// Where a part of the keys begins and ends: from the first one that any query sees they are cut evenly.
ivec2 keys_of_part(uint batch, uint part) {
    const int query = first_query(batch);
    const int used = query - past_len(batch); // 0 of new keys
    const int all = are_new != 0u ? int(keys) : used + int(new_keys);
    const int least = are_new != 0u ? 0 : first_cached(used);
    const int begin = clamp(query + first_visible, least, all);
    const int each = max(int(part_keys), (all - begin + int(own_parts) - 1) / int(own_parts));
    return ivec2(begin + int(part) * each, min(begin + (int(part) + 1) * each, all));
}
#else
int query_of(uint batch, uint row) { return int(row % queries); }

uint count_parts() { return max((keys + part_keys - 1u) / part_keys, 1u); }

ivec2 keys_of_part(uint batch, uint part) { return ivec2(part * part_keys, min((part + 1u) * part_keys, keys)); }
#endif

// Lowest and highest query of a tile of rows.
ivec2 tile_queries(uint batch, uint first, uint count) {
    const uint last = min(first + count, rows) - 1u;
    if (first / queries != last / queries) return ivec2(query_of(batch, 0u), query_of(batch, queries - 1u));
    return ivec2(query_of(batch, first), query_of(batch, last));
}

// First key and end of the keys of a part that any row of a tile may see.
uvec2 visible_keys(uint batch, uint first, uint count, uint part) {
    const ivec2 query = tile_queries(batch, first, count);
    const ivec2 own = keys_of_part(batch, part);
    return uvec2(max(max(own.x, query.x + first_visible), 0), max(min(own.y, query.y + last_visible + 1), 0));
}

// Keys of one buffer: key i of a text begins at k_at + i * k_step, modulo 2^32, and its value at v_at + i * v_step, for i under end.
struct Segment {
    uint k_at;
    uint k_step;
    uint v_at;
    uint v_step;
    uint end;
    bool is_new;
};

#ifdef NEW_KEYS
// The new keys of an example, or their values.
uint place_new(uint offset, uint batch, uint size) { return offset + batch * new_keys * size; }
#endif

// The segment of the key at `start`.
Segment segment_of(uint batch, uint start) {
    uint end = 0xffffffffu;
#ifdef NEW_KEYS
    end = uint(cached_keys(batch));
    if (start >= end) {
        const uint k_at = place_new(ROW_PLACE(k_new_offset), batch, depth) - end * depth;
        const uint v_at = place_new(ROW_PLACE(v_new_offset), batch, V_SIZE) - end * V_SIZE;
        return Segment(k_at, depth, v_at, V_SIZE, 0xffffffffu, true);
    }
#endif
    const uint k_at = place_keys(k_offset, batch, k_row, k_head);
    const uint v_at = place_keys(v_offset, batch, v_row, v_head);
    return Segment(k_at, k_row, v_at, v_row, end, false);
}

#include "attention_softmax.glsl"

// Where the result of a row lies, or the sums of a part of it, one row of all parts behind the other.
uint place_result(uint batch, uint row, uint part) {
    if (WHOLE != 0u) return place_row(ROW_PLACE(result_offset), batch, row, result_row, result_head);
    return result_offset + ((batch * rows + row) * parts + part) * result_row;
}

uint place_state(uint at) { return at + result_row - 4u; }
