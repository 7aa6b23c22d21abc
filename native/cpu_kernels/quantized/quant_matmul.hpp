// Layout of quantized weights, as in vksched/ops/quantized/quant_layout.py, and the kernels of each
// format.
#pragma once

#include "cpu_kernels/operands.hpp"
#include "cpu_kernels/vectors.hpp"

#ifdef HAS_VECTOR_EXTENSIONS
typedef uint32_t U32x4 __attribute__((vector_size(16)));

constexpr uint32_t QUANT_LAYOUT_VERSION = 2; // as in vksched/ops/lowering/native_kernels.py
constexpr uint32_t TILE = 256, RUN = 32, RUNS = 8;

// Return the words of a row: the last tile ends with its last run, and tails are stored for pairs
// of tiles. tile_words: with a tail.
inline size_t row_words(size_t columns, uint32_t tile_words, uint32_t low_bits)
{
    const size_t tiles = (columns + TILE - 1) / TILE, tail = tile_words % 4;
    return tiles * tile_words + tiles % 2 * tail - (tiles * TILE - columns) / RUN * low_bits;
}

// Rows of a weight, and the stride of the result. bias: null without one.
struct QuantMatmul {
    const uint32_t* words;
    size_t rows, row_words, columns;
    const float* bias;
    size_t out_stride;
};

using QuantKernel = void (*)(const QuantMatmul&, const float*, size_t, float*);

// A tile of a row that is quantized to int8. A part is a run, or half of one if the weight has two
// scales for a run. scale: of each part. sums: of the quants of a part, times its scale.
struct Q8Tile {
    int8_t quants[TILE];
    float scale[2 * RUNS], sums[2 * RUNS];
};
constexpr size_t Q8_TILE_WORDS = sizeof(Q8Tile) / 4;

using QuantizeQ8Kernel = void (*)(const float*, size_t, size_t, Q8Tile*);
using Q8MatmulKernel = void (*)(const QuantMatmul&, const Q8Tile*, size_t, float*);

// The kernels of a format. low_bits: bits of each quant in the low plane. tile_words: words of a
// tile with its tail.
struct QuantFormat {
    QuantKernel linear, dequantize;
    uint32_t low_bits, tile_words;
};

struct Q8Format {
    QuantizeQ8Kernel quantize;
    Q8MatmulKernel linear;
    uint32_t low_bits, tile_words;
};

// Return a format by its name. Throw KeyError if there is none. target: as in q8_targets(), "" for
// the first.
const QuantFormat& quant_format(const std::string& name, bool wide);
const Q8Format& q8_format(const std::string& name, const std::string& target);

// Names of the formats, and the instruction sets that this processor supports, the fastest first.
std::vector<std::string> quant_formats();
std::vector<std::string> q8_formats();
std::vector<std::string> q8_targets();
#endif
