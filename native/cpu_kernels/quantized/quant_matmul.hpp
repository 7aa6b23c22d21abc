// What loops over weights of few bits share: their layout, as
// vksched/ops/quantized/quant_layout.py has it.
#pragma once

#include "cpu_kernels/operands.hpp"
#include "cpu_kernels/vectors.hpp"

#ifdef HAS_VECTORS
typedef uint32_t Four __attribute__((vector_size(16)));

constexpr uint32_t WORDS_VERSION = 2; // of this layout, as vksched/ops/lowering/native_kernels.py has it
constexpr uint32_t TILE = 256, RUN = 32, RUNS = 8;

// Words of a row: the last tile ends with its last run, and tails are those of pairs of tiles.
// tile_words: with a tail. low: bits.
inline size_t row_words(size_t columns, uint32_t tile_words, uint32_t low)
{
    const size_t tiles = (columns + TILE - 1) / TILE, tail = tile_words % 4;
    return tiles * tile_words + tiles % 2 * tail - (tiles * TILE - columns) / RUN * low;
}

// Rows of a weight, and where their products go. bias: null without.
struct Packed {
    const uint32_t* words;
    size_t rows, row_words, columns;
    const float* bias;
    size_t out_row;
};

using PackedLoop = void (*)(const Packed&, const float*, size_t, float*);

// A tile of a row that is rounded to 8 bits. scale: of each part, that is half of a run where the
// weight has a scale for each, else a run. sums: of the codes of a part, times its scale.
struct Rounded {
    int8_t codes[TILE];
    float scale[2 * RUNS], sums[2 * RUNS];
};
constexpr size_t ROUNDED_WORDS = sizeof(Rounded) / 4;

using RoundingLoop = void (*)(const float*, size_t, size_t, Rounded*);
using RoundedLoop = void (*)(const Packed&, const Rounded*, size_t, float*);

// A format whose words have low bits of each code; words of a tile, with its tail.
struct PackedFormat {
    PackedLoop linear, unpack;
    uint32_t low, tile_words;
};

struct RoundedFormat {
    RoundingLoop round;
    RoundedLoop linear;
    uint32_t low, tile_words;
};

// By its name; throws KeyError where there is none. way: as rounded_ways() has it, "" for the first.
const PackedFormat& packed_format(const std::string& name, bool wide);
const RoundedFormat& rounded_format(const std::string& name, const std::string& way);

// Names of all formats, and what this processor runs, the fastest first.
std::vector<std::string> packed_formats();
std::vector<std::string> rounded_formats();
std::vector<std::string> rounded_ways();
#endif
