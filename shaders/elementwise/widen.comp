#version 450
// result = x, int32; with SHIFTED x - zero, with SCALED float32(that) * scale. One zero and scale for all, or for each channel.
// x: (count) integers of BITS in words, the first in the lowest bits; element i has channel i / inner % channels.
// One group takes a run of neighbouring quads of results (quads.glsl).
// Source: ONNX DequantizeLinear.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(constant_id = 3) const uint BITS = 8;
layout(constant_id = 4) const uint SIGNED = 0;
layout(constant_id = 5) const uint SHIFTED = 0;
layout(constant_id = 6) const uint SCALED = 0;
#include "quads.glsl"

layout(set = 0, binding = 0) readonly buffer X { uint x[]; };
layout(set = 0, binding = 1) readonly buffer Zero { int zero[]; };
layout(set = 0, binding = 2) readonly buffer Scale { float scale[]; };
layout(set = 0, binding = 3) writeonly buffer Result { uvec4 result[]; };
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

int element(uint i) {
    const uint each = 32u / BITS;
    const uint word = x[x_offset + i / each];
    const int at = int(i % each * BITS);
    return SIGNED != 0u ? bitfieldExtract(int(word), at, int(BITS)) : int(bitfieldExtract(word, at, int(BITS)));
}

uint widened(uint i) {
    const uint channel = i / inner % channels;
    int whole = element(i);
    if (SHIFTED != 0u) whole -= zero[zero_offset + channel * zero_step];
    if (SCALED == 0u) return uint(whole);
    return floatBitsToUint(float(whole) * scale[scale_offset + channel * scale_step]);
}

void main() {
    const uint quads = count / 4u;
    const uint run = run_of_group(quads);
    const uint end = end_of_run(quads, run);
    for (uint quad = first_of_run(run); quad < end; quad += gl_WorkGroupSize.x) {
        const uint i = 4u * quad;
        result[result_offset / 4u + quad] = uvec4(widened(i), widened(i + 1u), widened(i + 2u), widened(i + 3u));
    }
    const uint last = 4u * quads + gl_GlobalInvocationID.x; // of the one to three last elements
    if (last < count) result[result_offset / 4u + quads][last & 3u] = widened(last);
}
