// Which keys of a KV cache an example has: their number, and the slot of the cache that holds them. ARE_NEW: the keys are new ones, of no slot.

uint kv_len_at(uint batch) { return KV_LEN_AT + batch / heads * kv_len_stride; }

// The slot of an example; the number of keys, without slots.
uint named_slot(uint batch) { return uint(kv_len[kv_len_at(batch) + kv_len_stride / 2u]); }

// An example with a slot outside of the cache has no cached keys.
int cached_keys(uint batch) {
    const int used = clamp(kv_len[kv_len_at(batch)], 0, int(keys));
    return kv_len_stride < 2u || named_slot(batch) < slots ? used : 0;
}

uint slot_of(uint batch) {
    const uint slot = min(named_slot(batch), slots - 1u);
    return kv_len_stride < 2u || ARE_NEW ? batch / heads : slot;
}

// The first cached key that any query sees.
int first_cached(int used) { return CHUNK == 0u ? 0 : used / int(CHUNK) * int(CHUNK); }
