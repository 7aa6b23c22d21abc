// The kernel of dynamic_update_slice_fp16.comp and dynamic_update_slices_fp16.comp, which define row_word(i), word_of_result(i) and
// write_word(i, word).
#include "slots.glsl"

// The slice of rows that goes to a row of a slice of the result. Examples of one slot have different rows.
uint source_slice(uint target, uint row) {
    if (slots == 0u) return target < slices ? target : NOWHERE;
    for (uint example = 0u; example < slices / shared_slices; ++example) {
        const uint slice = example * shared_slices + target % shared_slices;
        if (target_slice(slice) == target && row - uint(start_of(slice)) < many) return slice;
    }
    return NOWHERE;
}

// Returns the element of rows that goes to an element of the result.
uint find_source(uint element) {
    const uint at = element % (size * inner);
    const uint slice = source_slice(element / (size * inner), at / inner);
    if (slice == NOWHERE) return NOWHERE;
    const uint row = at / inner - uint(start_of(slice)); // below 0 it is large
    return row < many ? (slice * many + row) * inner + at % inner : NOWHERE;
}

#ifdef FLOAT_ROWS
#include "fp16.glsl"
uint read_fp16(uint element) {
    const uint fp16_bits = float_to_fp16(uintBitsToFloat(row_word(element)));
#ifdef OVERFLOW_NAN
    if ((fp16_bits & 0x7fffu) == 0x7c00u) return fp16_bits | 0x0200u;
#endif
    return fp16_bits;
}
#else
uint read_fp16(uint element) {
    return row_word(element / 2u) >> (16u * (element & 1u)) & 0xffffu;
}
#endif

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < count; i += stride) {
        const uint slice = i / each;
        const int first = max(start_of(slice), 0);
        const uint target = target_slice(slice);
        if (uint(first) >= size || target == NOWHERE) continue;
        const uint word = (target * size + uint(first)) * inner / 2u + i % each;
        const uint low = find_source(2u * word), high = find_source(2u * word + 1u);
        if (low == NOWHERE && high == NOWHERE) continue;
        if ((low == NOWHERE ? high : low) / (many * inner) != slice) continue; // another slice's
        const uint old = low == NOWHERE || high == NOWHERE ? word_of_result(word) : 0u;
        const uint low_half = low == NOWHERE ? old & 0xffffu : read_fp16(low);
        const uint high_half = high == NOWHERE ? old >> 16u : read_fp16(high);
        write_word(word, high_half << 16u | low_half);
    }
}
