// exp of four values that are not above 0, without a branch and to two units in the last place; less than the least normal
// number is 0, and NaN stays NaN.
vec4 exp_of_negative(vec4 x) {
    // x = n log(2) + r with |r| < 0.35; what is added puts n into the low bits
    precise const vec4 shifted = x * 1.44269504 + 12582912.0;
    precise const vec4 n = shifted - 12582912.0;
    // log(2) in two parts, the first of few bits, so that its product is exact
    precise const vec4 rough = x - n * 0.693359375;
    precise const vec4 r = rough + n * 2.12194440e-4;
    const vec4 p = 1.0 + r * (1.0 + r * (0.5 + r * (1.66666667e-1 + r * (4.16666667e-2 + r * (8.33333333e-3 + r * 1.38888889e-3)))));
    const vec4 power = uintBitsToFloat((floatBitsToUint(shifted) << 23) + 0x3f800000u);
    return mix(p * power, vec4(0.0), lessThan(x, vec4(-87.0)));
}
