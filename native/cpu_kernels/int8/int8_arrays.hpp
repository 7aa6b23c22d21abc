// Operands of loops over codes of 8 bits, as numpy hands them over.
#pragma once

#include "cpu_kernels/arrays.hpp"
#include "cpu_kernels/int8/int8.hpp"

namespace integer {

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

} // namespace integer
