// float16 without a branch, which CPU drivers take both ways: 0 and subnormals are multiples of 2^-24.
float half_of(uint word) {
    const uint size = word & 0x7fffu;
    const uint rebiased = (size << 13) + mix(0x38000000u, 0x70000000u, size >= 0x7c00u);
    const float value = mix(uintBitsToFloat(rebiased), float(int(size)) * 5.9604644775390625e-8, size < 0x400u);
    return uintBitsToFloat(floatBitsToUint(value) | (word & 0x8000u) << 16);
}
