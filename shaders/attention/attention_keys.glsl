// How keys and values lie. KEY(row, i), VALUE(row, i): value i of the row that begins at a place. KEY_VEC4, VALUE_VEC4(row, four):
// four neighbours, from 4 * four on, where rows begin at multiples of four. Places and strides count values.
// FP16_KV: float16, two in a word. Q8_0_KV: as vksched/ops/attention/kv_q8_0.py lays them out; places and strides count words.
#ifdef Q8_0_KV
#include "kv_q8_0.glsl"
#define PLACE(offset) (offset)
#define VEC4_INDEX(place) (place)
#define KEY(row, i) q8_value(k[CODES_AT(row, (i) / 4u)], k[SCALES_AT(row, (i) / 4u)], i)
#define VALUE(row, i) q8_value(v[CODES_AT(row, (i) / 4u)], v[SCALES_AT(row, (i) / 4u)], i)
#define KEY_VEC4(row, four) q8_codes(k[CODES_AT(row, four)])
#define VALUE_VEC4(row, four) (q8_codes(v[CODES_AT(row, four)]) * q8_scale(v[SCALES_AT(row, four)], four))
#elif defined(FP16_KV)
float fp16_at(uint word, uint i) { return unpackHalf2x16(word >> (16u * (i & 1u))).x; }
vec4 fp16x4_to_vec4(uvec2 words) { return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y)); }
#ifdef WORDS_64
vec4 fp16x4_to_vec4(uint64_t loaded) { return fp16x4_to_vec4(unpackUint2x32(loaded)); }
#endif
#define PLACE(offset) (2u * (offset))
#define VEC4_INDEX(place) ((place) / 4u)
#define KEY(row, i) fp16_at(k[((row) + (i)) / 2u], (row) + (i))
#define VALUE(row, i) fp16_at(v[((row) + (i)) / 2u], (row) + (i))
#define KEY_VEC4(row, i) fp16x4_to_vec4(k[(row) + (i)])
#define VALUE_VEC4(row, i) fp16x4_to_vec4(v[(row) + (i)])
#else
#define PLACE(offset) (offset)
#define VEC4_INDEX(place) ((place) / 4u)
#define KEY(row, i) k[(row) + (i)]
#define VALUE(row, i) v[(row) + (i)]
#define KEY_VEC4(row, i) as_vec4(k[(row) + (i)])
#define VALUE_VEC4(row, i) as_vec4(v[(row) + (i)])
#endif
