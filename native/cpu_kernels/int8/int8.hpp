// What loops over codes of 8 bits share: the ways to multiply on this processor, and codes in words.
//
// Words of weights are laid out by vksched/ops/linalg/int8_weights.py: tiles of 16 columns, in each a row
// of their sums, then four codes of a column in a word.
#pragma once

#include "cpu_kernels/operands.hpp"

#include <string>
#include <utility>
#include <vector>

namespace integer {

constexpr size_t LANES = 16;
constexpr uint32_t SIGN = 0x80u;

// Rows of bytes that meet columns. row_step, word_step: words from row to row, and along the sum.
struct Rows {
    const uint32_t* words;
    size_t row_step, word_step;
};

// rows, tiles: the largest tile, in rows and in sixteens of columns.
struct Way {
    using Multiply = void (*)(const Rows&, size_t, const uint32_t*, size_t, size_t, size_t,
                              int32_t*);
    size_t rows, tiles;
    Multiply signed_columns, signed_rows;
    void (*quantize)(const float*, float, int32_t, int32_t, int32_t, int32_t*, size_t);
    void (*requantize)(const int32_t*, int32_t, float, int32_t, int32_t, int32_t, int32_t*, size_t);
};

constexpr size_t LARGEST_TILE = 8 * 2 * LANES;

// What this processor runs, the fastest first.
const std::vector<std::pair<std::string, Way>>& ways();

// By its name, the fastest without; throws KeyError where this processor does not run it.
const Way& way_of(const std::string& name);

// Codes as bytes without a sign: those with one are 128 larger.
INLINED uint32_t byte_of(int32_t code, uint32_t flip)
{
    return (static_cast<uint32_t>(code) & 0xffu) ^ flip;
}

inline uint32_t word_of(const int32_t* codes, size_t count, uint32_t flip)
{
    uint32_t word = 0;
    for (size_t at = 0; at < count; ++at)
        word |= byte_of(codes[at], flip) << 8 * at;
    return word;
}

inline uint32_t sum_of(uint32_t word)
{
    return (word & 0xffu) + (word >> 8 & 0xffu) + (word >> 16 & 0xffu) + (word >> 24);
}

} // namespace integer
