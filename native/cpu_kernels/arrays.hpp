// Operands of the CPU kernels as numpy passes them (buffer protocol), and the functions that bind
// each part of the module.
#pragma once

#include "cpu_kernels/operands.hpp"

#include <pybind11/pybind11.h>

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

namespace py = pybind11;

// Return whether a buffer format is native-endian float32, which Python spells in several ways.
inline bool is_float(const std::string& format)
{
    constexpr uint16_t one = 1;
    const char native_order = bit_cast<std::array<uint8_t, 2>>(one)[0] ? '<' : '>';
    return format == "f" || format == "@f" || format == "=f"
           || format == std::string{native_order, 'f'};
}

inline py::buffer_info floats(const py::buffer& buffer, bool writable = false,
                              bool any_alignment = false)
{
    py::buffer_info info = buffer.request(writable);
    py::ssize_t expected = sizeof(float);
    bool dense = true;
    for (py::ssize_t axis = info.ndim; axis-- > 0; expected *= info.shape[axis])
        dense = dense && (info.shape[axis] == 1 || info.strides[axis] == expected);
    const bool aligned =
        any_alignment || reinterpret_cast<uintptr_t>(info.ptr) % alignof(float) == 0;
    require(is_float(info.format) && aligned && (dense || info.size == 0),
            "expected contiguous, aligned float32");
    return info;
}

// Return whether a buffer of 32-bit elements has the type T.
template <class T>
bool holds(const py::buffer_info& info)
{
    if (std::is_floating_point_v<T>)
        return is_float(info.format);
    const auto is = [&](const char* name) { return info.format == name; };
    return std::is_unsigned_v<T> ? is("I") || is("L") : is("i") || is("l");
}

// A matrix of 32-bit elements with contiguous rows. A const T is only read.
template <class T>
struct Matrix {
    explicit Matrix(const py::buffer& buffer) : info(buffer.request(!std::is_const_v<T>))
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

void add_conv(py::module_& m);
void add_int8_quantize(py::module_& m);
void add_int8_conv(py::module_& m);
void add_int8_matmul(py::module_& m);
void add_int8_targets(py::module_& m);
void add_norms(py::module_& m);
void add_quantized(py::module_& m);
void add_program(py::module_& m);
void add_rnn(py::module_& m);
void add_repack(py::module_& m);
void add_resample(py::module_& m);
void add_q8(py::module_& m);
void add_gguf_strings(py::module_& m);
void add_unary(py::module_& m);

