// The functions of FUSED_UNARY, FUSED_BINARY and FUSED_TERNARY lifted to four values at once, and a call of each.
#include "unary.glsl"
#include "binary.glsl"

uint where(uint x, uint a, uint b) { return x != 0u ? a : b; }

#define LIFT_UNARY(f) \
    uvec4 f(uvec4 a, uvec4 b, uvec4 c) { \
        return uvec4(f(a.x, b.x, c.x), f(a.y, b.y, c.y), f(a.z, b.z, c.z), f(a.w, b.w, c.w)); \
    }
#define LIFT_BINARY(f) \
    uvec4 f(uvec4 a, uvec4 b, uvec4 c) { return uvec4(f(a.x, b.x), f(a.y, b.y), f(a.z, b.z), f(a.w, b.w)); }
FUSED_UNARY(LIFT_UNARY)
FUSED_BINARY(LIFT_BINARY)
FUSED_TERNARY(LIFT_UNARY)

#define CALL(f) result ^= f(a, b, c);
uvec4 every(uvec4 a, uvec4 b, uvec4 c) {
    uvec4 result = a;
    FUSED_UNARY(CALL)
    FUSED_BINARY(CALL)
    FUSED_TERNARY(CALL)
    return result;
}
