// What the files of the CPU backend's loops share: operands as numpy hands them over.
//
//   module.cpp     binds all
//   norms.cpp      norms of rows
//   resample.cpp   weighted sums of a few elements along an axis
//   texts.cpp      strings of files
//   told_loop.hpp  loops of programs that are one function
//   conv/          convolutions and pools
//   elementwise/   functions of one value, and chains of elementwise steps
//   integer/       products of codes of 8 bits, and such codes
//   packed/        products of weights of few bits, and such weights from the blocks of files
//   program/       many loops in one call, and those that programs alone have
//   recurrent/     recurrent layers
#pragma once

#include "platform.hpp"

#include <pybind11/pybind11.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

namespace py = pybind11;

template <class To, class From>
INLINED To bits_as(From value)
{
    static_assert(sizeof(To) == sizeof(From), "of one size");
    To made;
    std::memcpy(&made, &value, sizeof made);
    return made;
}

inline void require(bool holds, const char* expected)
{
    if (!holds)
        throw py::value_error(expected);
}

// Whether a buffer's format is this machine's float32, which Python spells in several ways.
inline bool is_float(const std::string& format)
{
    constexpr uint16_t one = 1;
    const char own = bits_as<std::array<uint8_t, 2>>(one)[0] ? '<' : '>';
    return format == "f" || format == "@f" || format == "=f" || format == std::string{own, 'f'};
}

inline py::buffer_info floats(const py::buffer& given, bool writable = false, bool anywhere = false)
{
    py::buffer_info info = given.request(writable);
    py::ssize_t expected = sizeof(float);
    bool dense = true;
    for (py::ssize_t axis = info.ndim; axis-- > 0; expected *= info.shape[axis])
        dense = dense && (info.shape[axis] == 1 || info.strides[axis] == expected);
    const bool aligned = anywhere || reinterpret_cast<uintptr_t>(info.ptr) % alignof(float) == 0;
    require(is_float(info.format) && aligned && (dense || info.size == 0),
            "expected contiguous, aligned float32");
    return info;
}

// Whether a buffer of 32 bits holds values of a type.
template <class T>
bool holds(const py::buffer_info& info)
{
    if (std::is_floating_point_v<T>)
        return is_float(info.format);
    const auto is = [&](const char* name) { return info.format == name; };
    return std::is_unsigned_v<T> ? is("I") || is("L") : is("i") || is("l");
}

// A matrix of 32 bits whose rows have no gaps; a const T is only read.
template <class T>
struct Matrix {
    explicit Matrix(const py::buffer& given) : info(given.request(!std::is_const_v<T>))
    {
        require(holds<std::remove_const_t<T>>(info) && info.itemsize == 4 && info.ndim == 2
                    && (info.shape[1] < 2 || info.strides[1] == 4)
                    && (info.shape[0] < 2 || (info.strides[0] >= 0 && info.strides[0] % 4 == 0))
                    && reinterpret_cast<uintptr_t>(info.ptr) % 4 == 0,
                "expected a matrix of 32 bits, aligned, with rows without gaps");
    }
    size_t rows() const { return info.shape[0]; }
    size_t columns() const { return info.shape[1]; }
    size_t row() const { return rows() < 2 ? columns() : info.strides[0] / 4; }
    T* data() const { return static_cast<T*>(info.ptr); }
    py::buffer_info info;
};

// A loop of one value at a time by its name, for the processor at hand or, not wide, for all.
using ValueLoop = void (*)(const float*, float*, size_t);
ValueLoop value_loop(const std::string& name, bool wide);

// Where the operands of a loop of a program lie, and behind them its result.
struct Operands {
    char* const* at;
    const uint32_t* slots;

    template <class T>
    T* get(size_t operand) const
    {
        return reinterpret_cast<T*>(at[slots[operand]]);
    }
};

// A loop as it is told: how many slots it has, its result's too, and which loop of others it calls.
struct Told {
    const std::vector<int64_t>& numbers;
    const std::vector<float>& reals;
    size_t slots, pieces;
    bool wide;
    const std::string& calls;
};

// A loop of a program that was made ready; run is called by several threads.
struct Loop {
    virtual ~Loop() = default;
    virtual void run(const Operands& given, size_t piece) const = 0;
};

// A loop by its name; throws KeyError where there is no such loop.
std::unique_ptr<Loop> loop_named(const std::string& name, const Told& told);

std::unique_ptr<Loop> attention_loop(const Told& told);
std::unique_ptr<Loop> cached_attention_loop(const Told& told);
std::unique_ptr<Loop> chain_loop(const Told& told);
std::unique_ptr<Loop> concat_loop(const Told& told);
std::unique_ptr<Loop> conv_loop(const Told& told);
std::unique_ptr<Loop> copy_loop(const Told& told);
std::unique_ptr<Loop> gather_loop(const Told& told);
std::unique_ptr<Loop> linear_packed_loop(const Told& told);
std::unique_ptr<Loop> linear_rounded_loop(const Told& told);
std::unique_ptr<Loop> matmul_loop(const Told& told);
std::unique_ptr<Loop> norm_loop(const Told& told);
std::unique_ptr<Loop> pool_loop(const Told& told);
std::unique_ptr<Loop> recurrent_loop(const Told& told);
std::unique_ptr<Loop> reduce_loop(const Told& told);
std::unique_ptr<Loop> rotary_loop(const Told& told);
std::unique_ptr<Loop> round_rows_loop(const Told& told);
std::unique_ptr<Loop> softmax_loop(const Told& told);
std::unique_ptr<Loop> transpose_loop(const Told& told);
std::unique_ptr<Loop> write_rows_loop(const Told& told);

void add_conv(py::module_& m);
void add_integer_codes(py::module_& m);
void add_integer_conv(py::module_& m);
void add_integer_matmul(py::module_& m);
void add_integer_ways(py::module_& m);
void add_norms(py::module_& m);
void add_packed(py::module_& m);
void add_program(py::module_& m);
void add_recurrent(py::module_& m);
void add_repack(py::module_& m);
void add_resample(py::module_& m);
void add_rounded(py::module_& m);
void add_texts(py::module_& m);
void add_values(py::module_& m);

