// Four values of what one load gives: floats, or with FP16 float16 packed in words. LOADED is the type of the load.
// FP16_B: one operand alone is packed, as float16 or with BF16_B as bfloat16.
#include "load_words.glsl"
#ifdef FP16
#define VEC4_LOAD uvec2
#else
#define VEC4_LOAD vec4
vec4 as_vec4(vec4 values) { return values; }
#endif
#ifdef BF16_B
vec4 as_vec4(uvec2 words) { return uintBitsToFloat(uvec4(words << 16, words & 0xffff0000u).xzyw); }
#elif defined(FP16) || defined(FP16_B)
vec4 as_vec4(uvec2 words) { return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y)); }
#endif

#ifndef WORDS_64
#define LOADED VEC4_LOAD
#elif defined(FP16)
#define LOADED uint64_t
vec4 as_vec4(uint64_t words) { return as_vec4(unpackUint2x32(words)); }
#else
#define LOADED u64vec2
vec4 as_vec4(u64vec2 loaded) { return uintBitsToFloat(words(loaded)); }
#endif
