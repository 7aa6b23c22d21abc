#version 450
// codes[r] = runs of 32 values of x[r] as whole numbers, round(x * 127 / largest), in the order in which quantized weights have theirs.
// x: (runs, 32), codes: (runs, 12): 8 words of four codes, the scale, and of both halves the sum of codes times the scale.
// One invocation rounds a run; a group strides over runs by the size of the whole dispatch. The scale of a run is NaN if a value is not finite.
// Source: vksched/ops/quantized/q8_activations.py.
#extension GL_GOOGLE_include_directive : require
layout(local_size_x = 64, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = 0, local_size_y_id = 1, local_size_z_id = 2) in;
layout(set = 0, binding = 0) readonly buffer X { vec4 x[]; };
layout(set = 0, binding = 1) writeonly buffer Codes { uvec4 codes[]; };
layout(push_constant) uniform Push {
    uint x_offset;
    uint codes_offset;
    uint runs;
    uint by_entries;
};

#include "quantize_run.glsl"

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint run = gl_GlobalInvocationID.x; run < runs; run += stride) {
        vec4 fours[8];
        for (uint q = 0u; q < 8u; ++q) fours[q] = x[x_offset / 4u + 8u * run + q];
        const QuantizedRun quantized = quantize_run(fours, by_entries != 0u);
        const uint at = codes_offset / 4u + 3u * run;
        codes[at] = quantized.low;
        codes[at + 1u] = quantized.more;
        codes[at + 2u] = uvec4(floatBitsToUint(quantized.scale_sums), 0u);
    }
}
