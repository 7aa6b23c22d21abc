// The functions of CHAIN_UNARY, CHAIN_BINARY and CHAIN_TERNARY lifted to four values at once, and their choice by number.
#include "unary.glsl"
#include "binary.glsl"

uint where(uint x, uint a, uint b) { return x != 0u ? a : b; }

#define LIFT_UNARY(number, f) \
    uvec4 f(uvec4 a, uvec4 b, uvec4 c) { \
        return uvec4(f(a.x, b.x, c.x), f(a.y, b.y, c.y), f(a.z, b.z, c.z), f(a.w, b.w, c.w)); \
    }
#define LIFT_BINARY(number, f) \
    uvec4 f(uvec4 a, uvec4 b, uvec4 c) { return uvec4(f(a.x, b.x), f(a.y, b.y), f(a.z, b.z), f(a.w, b.w)); }
CHAIN_UNARY(LIFT_UNARY)
CHAIN_BINARY(LIFT_BINARY)
CHAIN_TERNARY(LIFT_UNARY)

uvec4 same_word(uvec4 a, uvec4 b, uvec4 c) { return a; }

#define CASE(number, f) case number: return f(a, b, c);
uvec4 apply(uint code, uvec4 a, uvec4 b, uvec4 c) {
    switch (code) {
        CHAIN_UNARY(CASE)
        CHAIN_BINARY(CASE)
        CHAIN_TERNARY(CASE)
        default: return same_word(a, b, c);
    }
}
