// Which keys of a KV cache an example has: their number, the slot of the cache that holds them, and where the first query is behind them.
// ARE_NEW: the keys are new ones, of no slot.

uint kv_len_at(uint batch) { return KV_LEN_AT + batch / heads * kv_len_stride; }

// The slot of an example; another number without slots, where `slots` is 0.
uint named_slot(uint batch) { return uint(kv_len[kv_len_at(batch) + kv_len_stride / 2u]); }

// An example with a slot outside of the cache has no cached keys.
int cached_keys(uint batch) {
    const int used = clamp(kv_len[kv_len_at(batch)], 0, int(keys));
    return slots == 0u || named_slot(batch) < slots ? used : 0;
}

uint slot_of(uint batch) {
    const uint slot = min(named_slot(batch), slots - 1u);
    return slots == 0u || ARE_NEW ? batch / heads : slot;
}

#ifndef HAS_POSITIONS
#define HAS_POSITIONS (kv_len_stride > (slots == 0u ? 1u : 2u))
#endif
// The position of the first query behind the keys in use, if there is a last number for it; beyond any key if it is large.
int past_len(uint batch) {
    return HAS_POSITIONS ? clamp(kv_len[kv_len_at(batch) + kv_len_stride - 1u], -0x20000000, 0x20000000) : 0;
}

// The first cached key that any query sees.
int first_cached(int used) { return CHUNK == 0u ? 0 : used / int(CHUNK) * int(CHUNK); }
