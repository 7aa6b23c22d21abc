// An index checked against its axis, for kernels that bind a Status. Negative ones count from the end; one outside sets
// bit 0 of the status word, on which the run raises IndexOutOfRange.
const uint OUT_OF_RANGE = 0xffffffffu;
const uint NAN_WORD = 0x7fc00000u;

uint checked_index(int index, uint size) {
    index += index < 0 ? int(size) : 0;
    const bool fits = uint(index) < size; // which no negative one is
    for (uint once = 0u; once < uint(!fits); ++once) atomicOr(status[status_offset], 1u);
    return fits ? uint(index) : OUT_OF_RANGE;
}
