// exp of a value that is not above 0, without a branch and to two units in the last place; less than the least normal number
// is 0, and NaN stays NaN. Products by 2^23 stand for shifts, which SwiftShader makes lane by lane.
float exp_of_negative(float x) {
    // x = n log(2) + r with |r| < 0.35; what is added puts n into the low bits
    precise const float shifted = x * 1.44269504 + 12582912.0;
    precise const float n = shifted - 12582912.0;
    // log(2) in two parts, the first of few bits, so that its product is exact
    precise const float rough = x - n * 0.693359375;
    precise const float r = rough + n * 2.12194440e-4;
    const float p = 1.0 + r * (1.0 + r * (0.5 + r * (1.66666667e-1 + r * (4.16666667e-2 + r * (8.33333333e-3 + r * 1.38888889e-3)))));
    const float power = uintBitsToFloat(floatBitsToUint(shifted) * 0x00800000u + 0x3f800000u);
    return mix(p * power, 0.0, x < -87.0);
}

// One after another: SwiftShader keeps few values in registers.
vec4 exp_of_negative(vec4 x) {
    return vec4(exp_of_negative(x.x), exp_of_negative(x.y), exp_of_negative(x.z), exp_of_negative(x.w));
}
