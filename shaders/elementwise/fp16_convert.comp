#version 450
// result = x, from float32 to pairs of float16 (PACK 1) or back (PACK 0).
// OVERFLOW_NAN 1: magnitudes beyond float16's range become NaN, not infinity.
// Of count elements: one float32 a word, two float16 a word, the first in the lower half.
// One group converts a run of neighbouring elements, four at a time (vec4.glsl).
// Source: IEEE 754-2019, binary16.
#extension GL_GOOGLE_include_directive : require
#ifdef WORDS_64
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#endif
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "vec4.glsl"
#include "fp16.glsl"

#if PACK
layout(set = 0, binding = 0) readonly buffer X { WORDS x[]; };
layout(set = 0, binding = 1) writeonly buffer Result { PAIR result[]; };
#else
layout(set = 0, binding = 0) readonly buffer X { PAIR x[]; };
layout(set = 0, binding = 1) writeonly buffer Result { WORDS result[]; };
#endif
SINGLE_WORDS(0, readonly, x)
SINGLE_WORDS(1, writeonly, result)
layout(push_constant) uniform Push {
    uint x_offset;
    uint result_offset;
    uint count;
};

uint rounded(uint word) {
    const uint fp16_bits = float_to_fp16(uintBitsToFloat(word));
    return OVERFLOW_NAN != 0 && (fp16_bits & 0x7fffu) == 0x7c00u ? fp16_bits | 0x0200u : fp16_bits;
}
uint pack(uint low, uint high) { return rounded(low) | rounded(high) << 16; }
uint unpack(uint fp16_bits) { return floatBitsToUint(fp16_to_float(fp16_bits)); }

void main() {
    const uint vec4_count = count / 4u;
    const uint run = run_of_group(vec4_count);
    const uint end = end_of_run(vec4_count, run);
    for (uint i = first_of_run(run); i < end; i += gl_WorkGroupSize.x) {
#if PACK
        const uvec4 four = words(x[x_offset / 4u + i]);
        result[result_offset / 2u + i] = stored(uvec2(pack(four.x, four.y), pack(four.z, four.w)));
#else
        const uvec2 pair = words(x[x_offset / 2u + i]);
        result[result_offset / 4u + i] = stored(
            uvec4(unpack(pair.x & 0xffffu), unpack(pair.x >> 16), unpack(pair.y & 0xffffu), unpack(pair.y >> 16)));
#endif
    }
    const uint pair = 2u * vec4_count + gl_GlobalInvocationID.x; // of the one to three last elements
    const bool both = 2u * pair + 1u < count;
    if (2u * pair >= count) return;
#if PACK
    const uint at = x_offset + 2u * pair;
    const uint to = result_offset + pair;
    PAIR_WORD(result, to) = pack(WORD(x, at), both ? WORD(x, at + 1u) : 0u);
#else
    const uint at = x_offset + pair;
    const uint to = result_offset + 2u * pair;
    const uint halves = PAIR_WORD(x, at);
    WORD(result, to) = unpack(halves & 0xffffu);
    if (both) WORD(result, to + 1u) = unpack(halves >> 16);
#endif
}
