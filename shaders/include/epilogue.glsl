// What follows a product or a convolution in its kernel: a chain (chain.glsl) of the values that are stored, which is register 0,
// and of what a residual of the result's shape holds there, register 1. The shader has the residual as `beside`.
// The runtime writes the body of then() anew (vksched/runtime/link.py), as that of a chain; without steps it returns what goes
// in, and neither the residual nor any function is part of the module.
layout(constant_id = 3) const uint STEP_0 = 0;
layout(constant_id = 4) const uint STEP_1 = 0;
layout(constant_id = 5) const uint STEP_2 = 0;
layout(constant_id = 6) const uint STEP_3 = 0;
layout(constant_id = 7) const uint WORD_0 = 0;
layout(constant_id = 8) const uint WORD_1 = 0;
layout(constant_id = 9) const uint WORD_2 = 0;
layout(constant_id = 10) const uint WORD_3 = 0;

#define CHAIN_UNARY(X) \
    X(3, relu_float32) X(4, clip_float32) X(11, tanh_float32) X(12, sigmoid_float32) X(13, silu_float32) \
    X(15, gelu_float32) X(16, gelu_tanh_float32) X(20, leaky_relu_float32) X(21, hard_sigmoid_float32) \
    X(22, hard_swish_float32)
#define CHAIN_BINARY(X) X(64, add_float32) X(66, mul_float32)
#define CHAIN_TERNARY(X)
#include "chain_apply.glsl"

uvec4 nothing; // as in chain_main.glsl

// The residual at four elements of the result; of kernels that take fours at once `at.x` is where one of both starts.
uvec4 residual_at(uvec4 at) {
#if defined(FOURS) && defined(HALF)
    return floatBitsToUint(halves_to_floats(beside.residual[(at.x / 2u - result_offset + residual_offset) / 2u]));
#elif defined(FOURS)
    return floatBitsToUint(beside.residual[(at.x - result_offset + residual_offset) / 4u]);
#elif defined(HALF)
    const uvec2 word = at.xz / 2u + residual_offset - result_offset;
    return floatBitsToUint(halves_to_floats(uvec2(beside.residual[word.x], beside.residual[word.y])));
#else
    at += residual_offset - result_offset;
    return uvec4(beside.residual[at.x], beside.residual[at.y], beside.residual[at.z], beside.residual[at.w]);
#endif
}

uvec4 then(uvec4 x, uvec4 at) {
    const uint others = STEP_1 ^ STEP_2 ^ STEP_3 ^ WORD_1 ^ WORD_2 ^ WORD_3;
    return apply(STEP_0, x ^ nothing, residual_at(at), uvec4(WORD_0 ^ others));
}

// at: the element of the result that each value is, or another one of the result for what is not stored.
vec4 epilogue(vec4 values, uvec4 at) {
    nothing = uvec4(result_offset >> 31);
    return uintBitsToFloat(then(floatBitsToUint(values), at));
}

// Of integers there is none.
ivec4 epilogue(ivec4 values, uvec4 at) { return values; }

// Four elements behind each other from `at`, up to `last`.
uvec4 elements(uint at, uint last) { return min(at + uvec4(0u, 1u, 2u, 3u), uvec4(last)); }
