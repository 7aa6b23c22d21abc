// Where slices start, and where they go. start: one int for `shared_slices` slices, or with slots a pair of a start and the slot that takes them.

const uint NOWHERE = 0xffffffffu;

int start_of(uint slice) { return start[start_offset + slice / shared_slices * (slots == 0u ? 1u : 2u)]; }

// The slice of the result that a slice of rows goes to.
uint target_slice(uint slice) {
    if (slots == 0u) return slice;
    const uint slot = uint(start[start_offset + slice / shared_slices * 2u + 1u]); // below 0 it is large
    return slot < slots ? slot * shared_slices + slice % shared_slices : NOWHERE;
}
