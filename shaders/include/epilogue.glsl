// The epilogue of a matmul or a convolution in its kernel: a fused program (fused.glsl) of the values that are stored, which is register 0,
// and of what a residual of the result's shape holds there, register 1. The shader has the residual as `residual_buffer`.
// The runtime writes the body of epilogue_steps() anew (vksched/runtime/vulkan/spirv_patch.py), as that of a fused program; without steps it returns what goes
// in, and neither the residual nor any function is part of the module.

#define FUSED_UNARY(X) \
    X(relu_float32) X(clip_float32) X(tanh_float32) X(sigmoid_float32) X(silu_float32) \
    X(gelu_float32) X(gelu_tanh_float32) X(leaky_relu_float32) X(hard_sigmoid_float32) \
    X(hard_swish_float32)
#define FUSED_BINARY(X) X(add_float32) X(mul_float32)
#define FUSED_TERNARY(X)
#include "fused_apply.glsl"

uvec4 nothing; // as in fused_main.glsl

// The residual at four elements of the result; of kernels that take vec4s at once `at.x` is where one of both starts.
uvec4 residual_at(uvec4 at) {
#if defined(VEC4) && defined(FP16)
    return floatBitsToUint(fp16x4_to_vec4(residual_buffer.residual[(at.x / 2u - result_offset + residual_offset) / 2u]));
#elif defined(VEC4)
    return floatBitsToUint(residual_buffer.residual[(at.x - result_offset + residual_offset) / 4u]);
#elif defined(FP16)
    const uvec2 word = at.xz / 2u + residual_offset - result_offset;
    return floatBitsToUint(fp16x4_to_vec4(uvec2(residual_buffer.residual[word.x], residual_buffer.residual[word.y])));
#else
    at += residual_offset - result_offset;
    return uvec4(residual_buffer.residual[at.x], residual_buffer.residual[at.y], residual_buffer.residual[at.z], residual_buffer.residual[at.w]);
#endif
}

uvec4 epilogue_steps(uvec4 x, uvec4 at) { return every(x ^ nothing, residual_at(at), x); }

// at: the element of the result that each value is, or another one of the result for what is not stored.
vec4 epilogue(vec4 values, uvec4 at) {
    nothing = uvec4(result_offset >> 31);
    return uintBitsToFloat(epilogue_steps(floatBitsToUint(values), at));
}

// Of integers there is none.
ivec4 epilogue(ivec4 values, uvec4 at) { return values; }

// Four elements behind each other from `at`, up to `last`.
uvec4 elements(uint at, uint last) { return min(at + uvec4(0u, 1u, 2u, 3u), uvec4(last)); }
