// Operands of the CPU backend's loops as numpy hands them over, and what the module is bound by.
#pragma once

#include "cpu_kernels/operands.hpp"

#include <pybind11/pybind11.h>

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>

namespace py = pybind11;

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

