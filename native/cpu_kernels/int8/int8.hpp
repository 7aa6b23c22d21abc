// int8 kernels by instruction set, and helpers to pack bytes into words.
//
// vksched/ops/linalg/int8_weights.py packs weights: tiles of 16 columns, in each a row of column
// sums, then words with four values of a column each.
#pragma once

#include "cpu_kernels/operands.hpp"

#include <string>
#include <utility>
#include <vector>

namespace int8 {

constexpr size_t LANES = 16;
constexpr uint32_t SIGN_BIT = 0x80u;

// The rows of a tile. row_stride, word_stride: in words, between rows and along k.
struct RowBytes {
    const uint32_t* words;
    size_t row_stride, word_stride;
};

// rows, tiles: size of the largest tile, in rows and in groups of 16 columns.
struct Kernels {
    using Multiply = void (*)(const RowBytes&, size_t, const uint32_t*, size_t, size_t, size_t,
                              int32_t*);
    size_t rows, tiles;
    Multiply signed_columns, signed_rows;
    void (*quantize)(const float*, float, int32_t, int32_t, int32_t, int32_t*, size_t);
    void (*requantize)(const int32_t*, int32_t, float, int32_t, int32_t, int32_t, int32_t*, size_t);
};

constexpr size_t MAX_TILE = 8 * 2 * LANES;

// The instruction sets that this processor supports, the fastest first.
const std::vector<std::pair<std::string, Kernels>>& targets();

// Return the kernels of an instruction set; "" for the fastest. Throw KeyError if the processor
// does not support it.
const Kernels& kernels_for(const std::string& name);

// Return a value as an unsigned byte: flip = SIGN_BIT adds 128 to signed values.
INLINED uint32_t biased_byte(int32_t code, uint32_t flip)
{
    return (static_cast<uint32_t>(code) & 0xffu) ^ flip;
}

inline uint32_t pack_word(const int32_t* codes, size_t count, uint32_t flip)
{
    uint32_t word = 0;
    for (size_t at = 0; at < count; ++at)
        word |= biased_byte(codes[at], flip) << 8 * at;
    return word;
}

inline uint32_t byte_sum(uint32_t word)
{
    return (word & 0xffu) + (word >> 8 & 0xffu) + (word >> 16 & 0xffu) + (word >> 24);
}

} // namespace int8
