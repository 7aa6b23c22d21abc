#version 450
// result[i] = a random value from word i of the stream: uniform float, integer or coin, as KIND says.
// seed: one word or two; result: (count), contiguous.
// One invocation makes four values from one block of words; a group strides over the blocks by the size of the dispatch.
// Source: philox.glsl; Lemire, Fast random integer generation in an interval, 2019 (without rejection).
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint KIND = 0;
layout(constant_id = 4) const uint SEED_WORDS = 1;
const uint UNIFORM = 0u;
const uint INTEGERS = 1u;

layout(set = 0, binding = 0) readonly buffer Seed { uint seed[]; };
layout(set = 0, binding = 1) writeonly buffer Result { uint result[]; };
layout(push_constant) uniform Push {
    uint seed_offset;
    uint result_offset;
    uint count;
    uint stream_low;
    uint stream_high;
    uint scale;
    uint start;
};
#include "philox.glsl"

// uniform: start + scale * u as floats; integers: start + floor(scale * word / 2^32), scale 0 for all 2^32; coins: u < scale
// in 24 bits.
uint value_of(uint word) {
    if (KIND == UNIFORM) {
        precise const float unit = float(word >> 8) * 5.9604644775390625e-8;
        precise const float product = unit * uintBitsToFloat(scale);
        precise const float sum = product + uintBitsToFloat(start);
        return floatBitsToUint(sum);
    }
    if (KIND == INTEGERS) {
        uint high, low;
        umulExtended(word, scale, high, low);
        return start + (scale == 0u ? word : high);
    }
    return (word >> 8) < scale ? 1u : 0u;
}

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    const uint blocks = count / 4u + (count % 4u != 0u ? 1u : 0u);
    for (uint block = gl_GlobalInvocationID.x; block < blocks; block += stride) {
        const uvec4 words = random_words(block);
        const uint at = result_offset + 4u * block;
        const uint left = count - 4u * block;
        result[at] = value_of(words.x);
        if (left > 1u) result[at + 1u] = value_of(words.y);
        if (left > 2u) result[at + 2u] = value_of(words.z);
        if (left > 3u) result[at + 3u] = value_of(words.w);
    }
}
