#version 450
// result[slice, start + r, c] = rows[slice, r, c] where 0 <= start + r < size, of float16, two a word; all else of the result stays as it is.
// rows: (slices, many, inner), float16 too, or with FLOAT_ROWS float32, which is rounded; with OVERFLOW_NAN to NaN beyond float16's range. start: one int for every `shared_slices`, or with slots a pair of a start and the slot that takes these slices, result: (slices, size, inner), with rows of no whole words.
// One workgroup strides over the words that the rows of all slices may touch, `each` of a slice; a word of two slices is the first one's.
// Source: none.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;

layout(set = 0, binding = 0) readonly buffer Rows { uint rows[]; };
layout(set = 0, binding = 1) readonly buffer Start { int start[]; };
layout(set = 0, binding = 2) buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint rows_offset;
    uint start_offset;
    uint result_offset;
    uint count;
    uint each;
    uint slices;
    uint inner;
    uint many;
    uint size;
    uint shared_slices;
    uint slots; // 0: slices stay where they are
};
#include "slots.glsl"

// The slice of rows that goes to a slice of the result.
uint source_slice(uint target) {
    if (slots == 0u) return target < slices ? target : NOWHERE;
    for (uint example = 0u; example < slices / shared_slices; ++example) {
        const uint slice = example * shared_slices + target % shared_slices;
        if (target_slice(slice) == target) return slice;
    }
    return NOWHERE;
}

// Returns the element of rows that goes to an element of the result.
uint find_source(uint element) {
    const uint slice = source_slice(element / (size * inner));
    if (slice == NOWHERE) return NOWHERE;
    const uint at = element % (size * inner);
    const uint row = at / inner - uint(start_of(slice)); // below 0 it is large
    return row < many ? (slice * many + row) * inner + at % inner : NOWHERE;
}

#ifdef FLOAT_ROWS
#include "fp16.glsl"
uint read_fp16(uint element) {
    const uint fp16_bits = float_to_fp16(uintBitsToFloat(rows[rows_offset + element]));
#ifdef OVERFLOW_NAN
    if ((fp16_bits & 0x7fffu) == 0x7c00u) return fp16_bits | 0x0200u;
#endif
    return fp16_bits;
}
#else
uint read_fp16(uint element) {
    return rows[rows_offset + element / 2u] >> (16u * (element & 1u)) & 0xffffu;
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
        const uint old = low == NOWHERE || high == NOWHERE ? result[result_offset + word] : 0u;
        const uint low_half = low == NOWHERE ? old & 0xffffu : read_fp16(low);
        const uint high_half = high == NOWHERE ? old >> 16u : read_fp16(high);
        result[result_offset + word] = high_half << 16u | low_half;
    }
}
