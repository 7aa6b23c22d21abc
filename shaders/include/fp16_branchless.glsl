// float16 without a branch, which CPU drivers take both ways, and with products for shifts, which SwiftShader makes lane by lane. As
// if there were no subnormals a number under 2^-14 is half of it and of 2^-14 together.
float decode_fp16(uint word) {
    const float value = uintBitsToFloat((word & 0x7fffu) * 0x2000u + 0x70000000u) * uintBitsToFloat(0x07800000u);
    const float whole = value + min(0.0, value - 6.103515625e-5);
    return uintBitsToFloat(floatBitsToUint(whole) | (word & 0x8000u) * 0x10000u);
}
