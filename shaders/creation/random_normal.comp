#version 450
// result[i] = mean + deviation * z, z the normal quantile of word i of the stream: a cubic in each of 256 pieces.
// seed: one word or two; pieces: (256, 4) coefficients, the constant first; result: (count), contiguous.
// One invocation makes four values from one block of words; a group strides over the blocks by the size of the dispatch.
// Source: philox.glsl; pieces by leading zeros as in Thomas and Luk, Non-uniform random number generation through piecewise
// linear approximations, 2007. Sums and products only, which every device rounds alike.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint SEED_WORDS = 1;

layout(set = 0, binding = 0) readonly buffer Seed { uint seed[]; };
layout(set = 0, binding = 1) readonly buffer Pieces { float pieces[]; };
layout(set = 0, binding = 2) writeonly buffer Result { float result[]; };
layout(push_constant) uniform Push {
    uint seed_offset;
    uint pieces_offset;
    uint result_offset;
    uint count;
    uint stream_low;
    uint stream_high;
    float deviation;
    float mean;
};
#include "philox.glsl"

// The tail is u = tail / 2^33 < 1/2; its highest bit and the three bits below it name the piece, the rest the place in it.
float value_of(uint word) {
    const uint tail = (word << 1) | 1u;
    const uint octave = uint(findMSB(tail));
    const uint below = (tail << (31u - octave)) & 0x7fffffffu;
    const uint at = pieces_offset + 4u * (octave * 8u + (below >> 28));
    precise const float t = float((below & 0x0fffffffu) >> 4) * 5.9604644775390625e-8;
    precise const float product3 = pieces[at + 3u] * t;
    precise const float sum2 = product3 + pieces[at + 2u];
    precise const float product2 = sum2 * t;
    precise const float sum1 = product2 + pieces[at + 1u];
    precise const float product1 = sum1 * t;
    precise const float sum0 = product1 + pieces[at];
    precise const float scaled = ((word >> 31) != 0u ? sum0 : -sum0) * deviation;
    precise const float moved = scaled + mean;
    return moved;
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
