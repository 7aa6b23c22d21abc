// Formats of quantized weights as template parameters; vksched/ops/quantized/gguf_formats.py has
// the same table.
#pragma once

#include "cpu_kernels/quantized/quant_matmul.hpp"

#ifdef HAS_VECTOR_EXTENSIONS
// How the head of a tile stores scales:
//
//   FLOAT16, BFLOAT16   none: values are floats
//   FP16_SCALE          fp16 scales, two in a word
//   FP16_SCALE_MIN      an fp16 scale and min in a word
//   E8M0_SCALE          powers of two, four in a word
//   INT6_SCALE_MIN      6-bit scales and mins times two fp16 super-scales
//   INT8_SCALE          16 int8 scales times an fp16 super-scale
//   INT4_SCALE_MIN      16 4-bit scales and mins times two fp16 super-scales
//   INT6_SCALE_16, _8   16 or 8 6-bit scales times an fp16 super-scale
enum ScaleKind {
    FLOAT16,
    BFLOAT16,
    FP16_SCALE,
    FP16_SCALE_MIN,
    E8M0_SCALE,
    INT6_SCALE_MIN,
    INT8_SCALE,
    INT4_SCALE_MIN,
    INT6_SCALE_16,
    INT6_SCALE_8
};

// How quants map to values: linearly (minus the zero point), or by a table.
enum Table { LINEAR, IQ4_NL, MXFP4 };

constexpr float iq4_nl_table[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
constexpr float mxfp4_table[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

template <uint32_t LOW, uint32_t HIGH, uint32_t HEAD, int32_t ZERO, ScaleKind KIND,
          Table TABLE = LINEAR>
struct Format {
    static constexpr uint32_t low_bits = LOW, high_bits = HIGH, tail = HEAD % 4,
                              front = HEAD - tail;
    static constexpr int32_t zero_point = ZERO;
    static constexpr ScaleKind scale_kind = KIND;
    static constexpr Table table = TABLE;
    static constexpr bool has_min = // INT8_SCALE: that of the zero point, exact in float32
        KIND == FP16_SCALE_MIN || KIND == INT6_SCALE_MIN || KIND == INT4_SCALE_MIN
        || KIND == INT8_SCALE;
    static constexpr bool is_signed =
        HIGH == 0 && ZERO == 1 << (LOW - 1); // two's complement quants
    static constexpr uint32_t parts = // parts of a tile with a scale each
        KIND == INT8_SCALE || KIND == INT4_SCALE_MIN || KIND == INT6_SCALE_16 ? 16 : 8;
};

// Return the number of words of a tile with its tail.
template <class Format>
constexpr uint32_t tile_words_of()
{
    return Format::front + Format::tail + RUNS * (Format::low_bits + Format::high_bits);
}

// The words of a tile: front of the head, then high bits and low bits; and its tail.
struct Tile {
    const uint32_t *front, *tail;
};

template <class Format>
inline Tile tile_of(const uint32_t* row, size_t at)
{
    constexpr uint32_t tail = Format::tail, front_words = tile_words_of<Format>() - tail;
    const size_t odd = at % 2;
    const uint32_t* pair = row + (at - odd) * (front_words + tail);
    return {tail ? pair + 2 * tail + odd * front_words : row + at * front_words, pair + odd * tail};
}

// clang-format off
#define BLOCK_FORMATS(F) \
    F("q8_0", 8, 0, 4, 128, FP16_SCALE) F("q4_0", 4, 0, 4, 8, FP16_SCALE) \
    F("q5_0", 4, 1, 4, 16, FP16_SCALE) F("q4_1", 4, 0, 8, 0, FP16_SCALE_MIN) \
    F("q5_1", 4, 1, 8, 0, FP16_SCALE_MIN) F("q4_K", 4, 0, 4, 0, INT6_SCALE_MIN) \
    F("q5_K", 4, 1, 4, 0, INT6_SCALE_MIN) F("q6_K", 4, 2, 6, 32, INT8_SCALE) \
    F("q2_K", 2, 0, 6, 0, INT4_SCALE_MIN) F("q3_K", 2, 1, 4, 4, INT6_SCALE_16) \
    F("iq4_nl", 4, 0, 4, 0, FP16_SCALE, IQ4_NL) F("iq4_xs", 4, 0, 2, 0, INT6_SCALE_8, IQ4_NL) \
    F("mxfp4", 4, 0, 2, 0, E8M0_SCALE, MXFP4)
#define FORMATS(F) \
    F("f16", 16, 0, 0, 0, FLOAT16) F("bf16", 16, 0, 0, 0, BFLOAT16) BLOCK_FORMATS(F)
// clang-format on
#endif
