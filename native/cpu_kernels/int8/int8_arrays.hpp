// Operands of the int8 kernels, as numpy passes them.
#pragma once

#include "cpu_kernels/arrays.hpp"
#include "cpu_kernels/int8/int8.hpp"

namespace int8 {

// A contiguous array of 32-bit values.
template <class T>
struct DenseArray {
    DenseArray(const py::buffer& buffer, bool writable = false) : info(buffer.request(writable))
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

// Packed weights: tiles of 16 columns, each a row of column sums and the words.
struct Weights {
    Weights(const py::buffer& buffer, const py::buffer& zeros, size_t depth, size_t columns)
      : packed(buffer), zero_points(zeros), depth_words(depth)
    {
        require(packed.size() == tiles(columns) * tile_words() && packed.info.ndim == 3
                    && static_cast<size_t>(packed.info.shape[1]) == depth + 1,
                "expected words (tiles, 1 + words of a column, 16)");
        require(zero_points.size() == 1 || zero_points.size() == columns,
                "expected one zero point or one for each column");
        for (size_t at = 0; at < zero_points.size(); ++at)
            has_zero_points = has_zero_points || zero_points.data()[at] != 0;
    }
    static size_t tiles(size_t columns) { return (columns + LANES - 1) / LANES; }
    size_t tile_words() const { return (depth_words + 1) * LANES; }
    const uint32_t* tile(size_t number) const
    {
        return packed.data() + number * tile_words() + LANES;
    }
    uint32_t sum(size_t column) const
    {
        return packed.data()[column / LANES * tile_words() + column % LANES];
    }
    uint32_t zero_point(size_t column) const
    {
        return static_cast<uint32_t>(zero_points.data()[zero_points.size() > 1 ? column : 0]);
    }
    DenseArray<const uint32_t> packed;
    DenseArray<const int32_t> zero_points;
    size_t depth_words;
    bool has_zero_points = false;
};

} // namespace int8
