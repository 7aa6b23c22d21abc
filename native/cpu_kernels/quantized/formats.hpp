// Formats of weights of few bits, as data for templates: vksched/ops/quantized/gguf_formats.py has the same.
#pragma once

#include "cpu_kernels/quantized/quant_matmul.hpp"

#ifdef HAS_VECTORS
// Values are float16 or bfloat16; or how heads hold scales: two float16 in a word; a scale and a
// shift in a word; powers of two, four in a word; numbers of six bits times two float16; 16 numbers
// of eight bits times one; 16 scales and shifts of four bits times two; 16, or 8, scales of six bits
// times one.
enum Scales {
    FLOATS, BFLOATS, HALVES, PAIRS, POWERS, SIX_BITS, EIGHT_BITS, NIBBLES, SIXTEEN_OF_SIX,
    EIGHT_OF_SIX
};

// What codes stand for: themselves, less the zero; or values of a table.
enum Table { NUMBERS, STEPS, HALVED };

constexpr float steps_table[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
constexpr float powers_table[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

template <uint32_t LOW, uint32_t HIGH, uint32_t HEAD, int32_t ZERO, Scales KIND,
          Table TABLE = NUMBERS>
struct Format {
    static constexpr uint32_t low = LOW, high = HIGH, tail = HEAD % 4, front = HEAD - tail;
    static constexpr int32_t zero = ZERO;
    static constexpr Scales kind = KIND;
    static constexpr Table table = TABLE;
    static constexpr bool shifts = // EIGHT_BITS: those of the zero, exact in float32
        KIND == PAIRS || KIND == SIX_BITS || KIND == NIBBLES || KIND == EIGHT_BITS;
    static constexpr bool is_signed = HIGH == 0 && ZERO == 1 << (LOW - 1); // in two's complement
    static constexpr uint32_t parts = // of a tile, each with a scale
        KIND == EIGHT_BITS || KIND == NIBBLES || KIND == SIXTEEN_OF_SIX ? 16 : 8;
};

// Words of a tile, with its tail.
template <class Format>
constexpr uint32_t words_of()
{
    return Format::front + Format::tail + RUNS * (Format::low + Format::high);
}

// Where a tile has the front of its head, high bits and low bits, and where its tail is.
struct Tile {
    const uint32_t *front, *tail;
};

template <class Format>
inline Tile tile_of(const uint32_t* row, size_t at)
{
    constexpr uint32_t tail = Format::tail, each = words_of<Format>() - tail;
    const size_t odd = at % 2;
    const uint32_t* pair = row + (at - odd) * (each + tail);
    return {tail ? pair + 2 * tail + odd * each : row + at * each, pair + odd * tail};
}

// clang-format off
#define BLOCK_FORMATS(F) \
    F("q8_0", 8, 0, 4, 128, HALVES) F("q4_0", 4, 0, 4, 8, HALVES) F("q5_0", 4, 1, 4, 16, HALVES) \
    F("q4_1", 4, 0, 8, 0, PAIRS) F("q5_1", 4, 1, 8, 0, PAIRS) \
    F("q4_K", 4, 0, 4, 0, SIX_BITS) F("q5_K", 4, 1, 4, 0, SIX_BITS) \
    F("q6_K", 4, 2, 6, 32, EIGHT_BITS) F("q2_K", 2, 0, 6, 0, NIBBLES) \
    F("q3_K", 2, 1, 4, 4, SIXTEEN_OF_SIX) F("iq4_nl", 4, 0, 4, 0, HALVES, STEPS) \
    F("iq4_xs", 4, 0, 2, 0, EIGHT_OF_SIX, STEPS) F("mxfp4", 4, 0, 2, 0, POWERS, HALVED)
#define FORMATS(F) \
    F("f16", 16, 0, 0, 0, FLOATS) F("bf16", 16, 0, 0, 0, BFLOATS) BLOCK_FORMATS(F)
// clang-format on
#endif
