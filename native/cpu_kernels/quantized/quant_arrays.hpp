// Operands of loops over weights of few bits, as numpy hands them over.
#pragma once

#include "cpu_kernels/arrays.hpp"
#include "cpu_kernels/quantized/quant_matmul.hpp"

#ifdef HAS_VECTORS
inline Packed packed(const Matrix<const uint32_t>& words, size_t columns)
{
    require(columns % RUN == 0, "expected whole runs");
    Packed made{};
    made.words = words.data();
    made.rows = words.rows();
    made.row_words = words.row();
    made.columns = columns;
    return made;
}

// Tells of a bias, None without; the caller keeps what is returned.
inline py::buffer_info bias_of(const py::object& bias, Packed& told)
{
    py::buffer_info shift;
    if (!bias.is_none()) {
        shift = floats(py::cast<py::buffer>(bias));
        require(static_cast<size_t>(shift.size) == told.rows, "expected a bias for each row");
        told.bias = static_cast<const float*>(shift.ptr);
    }
    return shift;
}
#endif
