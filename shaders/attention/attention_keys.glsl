// How keys and values lie. KEY(row, i), VALUE(row, i): value i of the row that begins at a place. FOUR_KEYS, FOUR_VALUES(row, four):
// four neighbours, from 4 * four on, where rows begin at multiples of four. Places and strides count values.
// HALF_KEYS: float16, two in a word. Q8_0_KEYS: as vksched/ops/attention/kv_q8_0.py lays them out; places and strides count words.
#ifdef Q8_0_KEYS
#include "kv_q8_0.glsl"
#define PLACE(offset) (offset)
#define FOURS_OF(place) (place)
#define KEY(row, i) q8_value(k[CODES_AT(row, (i) / 4u)], k[SCALES_AT(row, (i) / 4u)], i)
#define VALUE(row, i) q8_value(v[CODES_AT(row, (i) / 4u)], v[SCALES_AT(row, (i) / 4u)], i)
#define FOUR_KEYS(row, four) q8_codes(k[CODES_AT(row, four)])
#define FOUR_VALUES(row, four) (q8_codes(v[CODES_AT(row, four)]) * q8_scale(v[SCALES_AT(row, four)], four))
#elif defined(HALF_KEYS)
float half_at(uint word, uint i) { return unpackHalf2x16(word >> (16u * (i & 1u))).x; }
vec4 four_halves(uvec2 words) { return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y)); }
#ifdef WORDS_64
vec4 four_halves(uint64_t loaded) { return four_halves(unpackUint2x32(loaded)); }
#endif
#define PLACE(offset) (2u * (offset))
#define FOURS_OF(place) ((place) / 4u)
#define KEY(row, i) half_at(k[((row) + (i)) / 2u], (row) + (i))
#define VALUE(row, i) half_at(v[((row) + (i)) / 2u], (row) + (i))
#define FOUR_KEYS(row, i) four_halves(k[(row) + (i)])
#define FOUR_VALUES(row, i) four_halves(v[(row) + (i)])
#else
#define PLACE(offset) (offset)
#define FOURS_OF(place) ((place) / 4u)
#define KEY(row, i) k[(row) + (i)]
#define VALUE(row, i) v[(row) + (i)]
#define FOUR_KEYS(row, i) four(k[(row) + (i)])
#define FOUR_VALUES(row, i) four(v[(row) + (i)])
#endif
