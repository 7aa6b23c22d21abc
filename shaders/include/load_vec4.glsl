// Four values of what one load gives: floats, or with HALF float16 packed in words. LOADED is the type of the load.
// HALF_B: one operand alone is packed, as float16 or with BFLOAT_B as bfloat16.
#include "load_words.glsl"
#ifdef HALF
#define PACKED uvec2
#else
#define PACKED vec4
vec4 four(vec4 values) { return values; }
#endif
#ifdef BFLOAT_B
vec4 four(uvec2 words) { return uintBitsToFloat(uvec4(words << 16, words & 0xffff0000u).xzyw); }
#elif defined(HALF) || defined(HALF_B)
vec4 four(uvec2 words) { return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y)); }
#endif

#ifndef WORDS_64
#define LOADED PACKED
#elif defined(HALF)
#define LOADED uint64_t
vec4 four(uint64_t words) { return four(unpackUint2x32(words)); }
#else
#define LOADED u64vec2
vec4 four(u64vec2 loaded) { return uintBitsToFloat(words(loaded)); }
#endif
