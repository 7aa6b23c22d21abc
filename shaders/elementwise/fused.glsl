// A fused program: elementwise steps on four values at once, one after the other.
// The runtime writes the body of fused() anew (vksched/runtime/vulkan/spirv_patch.py), with calls of what the steps are; the one below calls
// every function, so that the module holds it.
#include "fused_ops.glsl"
#include "fused_apply.glsl"

uvec4 fused(uvec4 x0, uvec4 x1, uvec4 x2, uvec4 x3, uvec4 x4, uvec4 x5) {
    return every(x0, x1, x2) ^ every(x3, x4, x5);
}
