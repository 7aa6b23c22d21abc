#version 450
// result = x, from float32 to pairs of float16 (PACK 1) or back (PACK 0).
// Of count elements: one float32 a word, two float16 a word, the first in the lower half.
// One invocation converts pairs, striding over them by the size of the whole dispatch.
// Source: IEEE 754-2019, binary16.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
#include "half.glsl"

layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint result_offset;
    uint count;
};

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint i = gl_GlobalInvocationID.x; i < (count + 1u) / 2u; i += stride) {
        const bool both = 2u * i + 1u < count;
#if PACK
        const uint low = float_to_half(uintBitsToFloat(x[x_offset + 2u * i]));
        const uint high = both ? float_to_half(uintBitsToFloat(x[x_offset + 2u * i + 1u])) : 0u;
        result[result_offset + i] = low | high << 16;
#else
        const uint word = x[x_offset + i];
        result[result_offset + 2u * i] = floatBitsToUint(half_to_float(word & 0xffffu));
        if (both) result[result_offset + 2u * i + 1u] = floatBitsToUint(half_to_float(word >> 16));
#endif
    }
}
