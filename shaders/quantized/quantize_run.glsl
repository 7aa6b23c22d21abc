// A run of 32 values as int8, round(x * 127 / largest); its scale is NaN if a value is not finite.
// Source: vksched/ops/quantized/q8_activations.py.
struct QuantizedRun {
    uvec4 low; // words of four codes
    uvec4 more;
    vec3 scale_sums; // the scale, and the sum of codes times the scale, of each half
};

// Four words, the numbers of each in a byte of its own: of four vec4s, the first in the lowest.
uvec4 in_bytes(ivec4 a, ivec4 b, ivec4 c, ivec4 d) {
    return uvec4(a) & 255u | (uvec4(b) & 255u) << 8 | (uvec4(c) & 255u) << 16 | uvec4(d) << 24;
}

int total(ivec4 four) { return four.x + four.y + four.z + four.w; }

// entries: words have the codes of a vec4 one behind the other, else one of each of four vec4s.
QuantizedRun quantize_run(vec4 fours[8], bool entries) {
    const uint infinite = 0x7f800000u;
    uvec4 sizes = uvec4(0u);
    for (uint q = 0u; q < 8u; ++q) {
        sizes = max(sizes, floatBitsToUint(fours[q]) & 0x7fffffffu); // bits of numbers, infinity and NaN in this order
    }
    const uint most = max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
    const float largest = uintBitsToFloat(most);
    const bool counts = most < infinite && largest >= 1e-36;
    const float by = counts ? 127.0 / largest : 0.0;
    const float scale = counts ? largest / 127.0 : 0.0;
    ivec4 whole[8];
    for (uint q = 0u; q < 8u; ++q) whole[q] = counts ? ivec4(clamp(roundEven(fours[q] * by), -127.0, 127.0)) : ivec4(0);
    QuantizedRun quantized;
    quantized.low = entries ? in_bytes(whole[0], whole[1], whole[2], whole[3]) : in_bytes(whole[0], whole[2], whole[4], whole[6]);
    quantized.more = entries ? in_bytes(whole[4], whole[5], whole[6], whole[7]) : in_bytes(whole[1], whole[3], whole[5], whole[7]);
    quantized.scale_sums.x = most < infinite ? scale : uintBitsToFloat(0x7fc00000u);
    quantized.scale_sums.y = scale * float(total(whole[0] + whole[1] + whole[2] + whole[3]));
    quantized.scale_sums.z = scale * float(total(whole[4] + whole[5] + whole[6] + whole[7]));
    return quantized;
}
