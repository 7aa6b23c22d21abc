// float16 in the lower and upper half of a word, converted by integer arithmetic: packHalf2x16 may round either way, and
// drivers may flush its subnormals.

float fp16_to_float(uint bits) {
    const uint sign = (bits & 0x8000u) << 16;
    const uint exponent = bits >> 10 & 31u;
    const uint mantissa = bits & 1023u;
    if (exponent == 31u) return uintBitsToFloat(sign | 0x7f800000u | mantissa << 13);
    if (exponent != 0u) return uintBitsToFloat(sign | exponent + 112u << 23 | mantissa << 13);
    if (mantissa == 0u) return uintBitsToFloat(sign);
    const uint top = uint(findMSB(mantissa)); // a subnormal: mantissa * 2^-24
    return uintBitsToFloat(sign | top + 103u << 23 | (mantissa << 23u - top & 0x007fffffu));
}

vec4 fp16x4_to_vec4(uvec2 words) {
    const vec2 low = vec2(fp16_to_float(words.x & 0xffffu), fp16_to_float(words.x >> 16));
    return vec4(low, fp16_to_float(words.y & 0xffffu), fp16_to_float(words.y >> 16));
}

// Rounds to nearest, ties to even.
uint float_to_fp16(float value) {
    const uint word = floatBitsToUint(value);
    const uint sign = word >> 16 & 0x8000u;
    const uint size = word & 0x7fffffffu;
    if (size > 0x7f800000u) return sign | 0x7e00u;
    if (size >= 0x477ff000u) return sign | 0x7c00u; // from 65520 on: infinity
    if (size < 0x33000001u) return sign; // up to 2^-25: zero
    // the mantissa with its leading one, of which `drop` bits go
    const uint exponent = size >> 23;
    const bool normal = exponent >= 113u;
    const uint drop = normal ? 13u : 126u - exponent;
    const uint mantissa = (size & 0x007fffffu) | 0x00800000u;
    const uint kept = mantissa >> drop;
    const uint rest = mantissa & (1u << drop) - 1u;
    const uint middle = 1u << drop - 1u;
    const uint up = rest > middle || (rest == middle && (kept & 1u) == 1u) ? 1u : 0u;
    return sign | (normal ? exponent - 113u << 10 : 0u) + kept + up;
}
