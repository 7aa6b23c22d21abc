// What loops over weights of few bits share: their layout, as
// vksched/ops/products/block_layout.py has it, and how they are compiled.
#pragma once

#include "loops.hpp"

#if defined(__GNUC__) && defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector) && __has_builtin(__builtin_convertvector)
#define HAS_VECTORS
#endif
#endif

#if defined(__x86_64__) && !defined(__clang__)
#define COMPILED_TWICE
#include <immintrin.h>
#endif

#ifdef HAS_VECTORS
typedef uint32_t Four __attribute__((vector_size(16)));

constexpr uint32_t TILE = 256, RUN = 32, RUNS = 8;

// Words of a row: the last tile ends with its last run. low: bits.
inline size_t row_words(size_t columns, uint32_t tile_words, uint32_t low)
{
    const size_t tiles = (columns + TILE - 1) / TILE;
    return tiles * tile_words - (tiles * TILE - columns) / RUN * low;
}

inline bool has_wider()
{
#ifdef COMPILED_TWICE
    static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
        && __builtin_cpu_supports("f16c");
    return has;
#else
    return false;
#endif
}

// A matrix of 32 bits whose rows have no gaps.
struct Matrix {
    explicit Matrix(const py::buffer& given, bool whole, bool writable = false)
      : info(given.request(writable))
    {
        const bool kind = whole ? info.format == "I" || info.format == "L" : is_float(info.format);
        require(kind && info.itemsize == 4 && info.ndim == 2
                    && (info.shape[1] < 2 || info.strides[1] == 4)
                    && (info.shape[0] < 2 || (info.strides[0] >= 0 && info.strides[0] % 4 == 0))
                    && reinterpret_cast<uintptr_t>(info.ptr) % 4 == 0,
                "expected a matrix of 32 bits, aligned, with rows without gaps");
    }
    size_t rows() const { return info.shape[0]; }
    size_t columns() const { return info.shape[1]; }
    size_t row() const { return rows() < 2 ? columns() : info.strides[0] / 4; }
    py::buffer_info info;
};

// Rows of a weight, and where their products go. bias: null without.
struct Packed {
    const uint32_t* words;
    size_t rows, row_words, columns;
    const float* bias;
    size_t out_row;
};

using PackedLoop = void (*)(const Packed&, const float*, size_t, float*);

// The product of a format with few rows of x.
PackedLoop packed_loop(const std::string& name, bool wide);
#endif
