#version 450
// result = x, int32; with SHIFTED x - zero, with SCALED float32(that) * scale. One zero and scale for all, or for each channel.
// x: (count) integers of BITS in words, the first in the lowest bits; element i has channel i / inner % channels.
// One workgroup takes a run of neighbouring vec4s of results (vec4.glsl).
// Source: ONNX DequantizeLinear.
#extension GL_GOOGLE_include_directive : require
#ifdef WORDS_64
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#endif
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint BITS = 8;
layout(constant_id = 4) const uint SIGNED = 0;
layout(constant_id = 5) const uint SHIFTED = 0;
layout(constant_id = 6) const uint SCALED = 0;
layout(constant_id = 7) const uint CHANNELS = 2; // 0: one zero and scale for all, 1: a vec4 has one channel, 2: it may have four
#include "vec4.glsl"

layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1) readonly buffer Zero { int zero[]; };
layout(set = 0, binding = 2) readonly buffer Scale { float scale[]; };
layout(set = 0, binding = 3) writeonly buffer Result { WORDS result[]; };
SINGLE_WORDS(3, writeonly, result)
layout(push_constant) uniform Push {
    uint x_offset;
    uint zero_offset;
    uint scale_offset;
    uint result_offset;
    uint count;
    uint inner;
    uint channels;
    uint zero_step;
    uint scale_step;
};

// Four neighbouring integers: of one word, or of two.
ivec4 wholes(uint vec4_index) {
    if (BITS == 8u) {
        const uint word = x[x_offset + vec4_index];
        if (SIGNED != 0u) return ivec4(int(word << 24), int(word << 16), int(word << 8), int(word)) >> 24;
        return ivec4(uvec4(word, word >> 8, word >> 16, word >> 24) & 0xffu);
    }
    const uint low = x[x_offset + 2u * vec4_index];
    const uint high = 4u * vec4_index + 2u < count ? x[x_offset + 2u * vec4_index + 1u] : 0u;
    if (SIGNED != 0u) return ivec4(int(low << 16), int(low), int(high << 16), int(high)) >> 16;
    return ivec4(uvec4(low, low >> 16, high, high >> 16) & 0xffffu);
}

ivec4 zeros(uvec4 channel) {
    const uvec4 at = zero_offset + channel * zero_step;
    if (CHANNELS < 2u) return ivec4(zero[at.x]);
    return ivec4(zero[at.x], zero[at.y], zero[at.z], zero[at.w]);
}

vec4 scales(uvec4 channel) {
    const uvec4 at = scale_offset + channel * scale_step;
    if (CHANNELS < 2u) return vec4(scale[at.x]);
    return vec4(scale[at.x], scale[at.y], scale[at.z], scale[at.w]);
}

uvec4 widened(uint vec4_index) {
    const uint i = 4u * vec4_index;
    uvec4 channel = uvec4(0u);
    if (CHANNELS == 1u) channel = uvec4(i / inner % channels);
    if (CHANNELS == 2u) channel = (uvec4(i) + uvec4(0u, 1u, 2u, 3u)) / inner % channels;
    ivec4 whole = wholes(vec4_index);
    if (SHIFTED != 0u) whole -= zeros(channel);
    if (SCALED == 0u) return uvec4(whole);
    return floatBitsToUint(vec4(whole) * scales(channel));
}

void main() {
    const uint vec4_count = count / 4u;
    const uint run = run_of_group(vec4_count);
    const uint end = end_of_run(vec4_count, run);
    for (uint vec4_index = first_of_run(run); vec4_index < end; vec4_index += gl_WorkGroupSize.x) {
        result[result_offset / 4u + vec4_index] = stored(widened(vec4_index));
    }
    const uint last = gl_GlobalInvocationID.x; // of the one to three last elements
    if (last < (count & 3u)) {
        WORD_OF(result, result_offset / 4u + vec4_count, last) = widened(vec4_count)[last];
    }
}
