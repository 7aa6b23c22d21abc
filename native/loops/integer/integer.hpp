// What loops over codes of 8 bits share: operands, and the ways to multiply on this processor.
//
// Words of weights are laid out by vksched/ops/products/codes.py: tiles of 16 columns, in each a row
// of their sums, then four codes of a column in a word.
#pragma once

#include "loops/loops.hpp"

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

// Values of 32 bits without gaps.
template <class T>
struct Line {
    Line(const py::buffer& given, bool writable = false) : info(given.request(writable))
    {
        py::ssize_t expected = 4;
        bool dense = info.itemsize == 4;
        for (py::ssize_t axis = info.ndim; axis-- > 0; expected *= info.shape[axis])
            dense = dense && (info.shape[axis] == 1 || info.strides[axis] == expected);
        require(dense && reinterpret_cast<uintptr_t>(info.ptr) % 4 == 0,
                "expected values of 32 bits without gaps, aligned");
    }
    size_t size() const { return info.size; }
    T* data() const { return static_cast<T*>(info.ptr); }
    py::buffer_info info;
};

// Tiles of weights. sums: a row before the words of each.
struct Weights {
    Weights(const py::buffer& given, const py::buffer& zeros, size_t depth, size_t columns)
      : own(given), zero(zeros), words(depth)
    {
        require(own.size() == tiles(columns) * step() && own.info.ndim == 3
                    && static_cast<size_t>(own.info.shape[1]) == depth + 1,
                "expected words (tiles, 1 + words of a column, 16)");
        require(zero.size() == 1 || zero.size() == columns,
                "expected one zero point or one for each column");
        for (size_t at = 0; at < zero.size(); ++at)
            shifted = shifted || zero.data()[at] != 0;
    }
    static size_t tiles(size_t columns) { return (columns + LANES - 1) / LANES; }
    size_t step() const { return (words + 1) * LANES; }
    const uint32_t* tile(size_t number) const { return own.data() + number * step() + LANES; }
    uint32_t sum(size_t column) const
    {
        return own.data()[column / LANES * step() + column % LANES];
    }
    uint32_t zero_of(size_t column) const
    {
        return static_cast<uint32_t>(zero.data()[zero.size() > 1 ? column : 0]);
    }
    Line<const uint32_t> own;
    Line<const int32_t> zero;
    size_t words;
    bool shifted = false;
};

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
