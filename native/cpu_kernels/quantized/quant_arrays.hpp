// Operands of the quantized kernels, as numpy passes them.
#pragma once

#include "cpu_kernels/arrays.hpp"
#include "cpu_kernels/quantized/quant_matmul.hpp"

#ifdef HAS_VECTOR_EXTENSIONS
inline QuantMatmul make_quant_matmul(const Matrix<const uint32_t>& words, size_t columns)
{
    require(columns % RUN == 0, "expected whole runs");
    QuantMatmul params{};
    params.words = words.data();
    params.rows = words.rows();
    params.row_words = words.row();
    params.columns = columns;
    return params;
}

// Set an optional bias. The caller keeps the returned buffer alive.
inline py::buffer_info bias_of(const py::object& bias, QuantMatmul& params)
{
    py::buffer_info bias_view;
    if (!bias.is_none()) {
        bias_view = floats(py::cast<py::buffer>(bias));
        require(static_cast<size_t>(bias_view.size) == params.rows, "expected a bias for each row");
        params.bias = static_cast<const float*>(bias_view.ptr);
    }
    return bias_view;
}
#endif
