#version 450
// codes[r] = runs of 32 values of x[r] as whole numbers, round(x * 127 / largest), in the order in which quantized weights have theirs.
// x: (runs, 32), codes: (runs, 12): 8 words of four codes, the scale, and of both halves the sum of codes times the scale.
// One invocation rounds a run; a group strides over runs by the size of the whole dispatch. What is not finite makes its run NaN.
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

const uint INFINITE = 0x7f800000u;

// Four words, the numbers of each in a byte of its own: of four vec4s, the first in the lowest.
uvec4 in_bytes(ivec4 a, ivec4 b, ivec4 c, ivec4 d) {
    return uvec4(a) & 255u | (uvec4(b) & 255u) << 8 | (uvec4(c) & 255u) << 16 | uvec4(d) << 24;
}

int total(ivec4 four) { return four.x + four.y + four.z + four.w; }

void main() {
    const uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
    for (uint run = gl_GlobalInvocationID.x; run < runs; run += stride) {
        vec4 fours[8];
        uvec4 sizes = uvec4(0u);
        for (uint q = 0u; q < 8u; ++q) {
            fours[q] = x[x_offset / 4u + 8u * run + q];
            sizes = max(sizes, floatBitsToUint(fours[q]) & 0x7fffffffu); // bits of numbers, infinity and NaN in this order
        }
        const uint most = max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
        const float largest = uintBitsToFloat(most);
        const bool counts = most < INFINITE && largest >= 1e-36;
        const float by = counts ? 127.0 / largest : 0.0;
        const float scale = counts ? largest / 127.0 : 0.0;
        ivec4 whole[8];
        for (uint q = 0u; q < 8u; ++q) whole[q] = counts ? ivec4(clamp(roundEven(fours[q] * by), -127.0, 127.0)) : ivec4(0);
        const float first = scale * float(total(whole[0] + whole[1] + whole[2] + whole[3]));
        const float second = scale * float(total(whole[4] + whole[5] + whole[6] + whole[7]));
        const uint at = codes_offset / 4u + 3u * run;
        const bool entries = by_entries != 0u;
        codes[at] = entries ? in_bytes(whole[0], whole[1], whole[2], whole[3]) : in_bytes(whole[0], whole[2], whole[4], whole[6]);
        codes[at + 1u] = entries ? in_bytes(whole[4], whole[5], whole[6], whole[7]) : in_bytes(whole[1], whole[3], whole[5], whole[7]);
        const uint told = most < INFINITE ? floatBitsToUint(scale) : 0x7fc00000u;
        codes[at + 2u] = uvec4(told, floatBitsToUint(first), floatBitsToUint(second), 0u);
    }
}
