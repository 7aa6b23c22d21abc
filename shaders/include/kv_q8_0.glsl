// Rows in q8_0, as vksched/ops/attention/kv_q8_0.py lays them out: tiles of 64 values, a word of two scales and then 16 of codes.
// A four is four neighbours, whose codes share a word.
#include "fp16_branchless.glsl"
#define CODES_AT(row, four) ((row) + (four) + (four) / 16u + 1u)
#define SCALES_AT(row, four) ((row) + (four) / 16u * 17u)

float q8_scale(uint scales, uint four) { return decode_fp16(scales >> 16u * (four >> 3 & 1u)); }

vec4 q8_codes(uint codes) { return vec4(ivec4(codes << 24, codes << 16, codes << 8, codes) >> 24); }

// Value i of a row, of its word of codes and its word of scales.
float q8_value(uint codes, uint scales, uint i) {
    return float(int(codes << 24u - 8u * (i & 3u)) >> 24) * q8_scale(scales, i / 4u);
}
