// Products by the library that numpy computes with.
#pragma once

#include "cpu_kernels/operands.hpp"

// Rows (those of a vector as columns) and columns of a piece are a multiple of so many, but for the last, as
// vksched/ops/linalg/matmul_blocks.py has it.
constexpr int64_t PRODUCT_UNITS[] = {12, 32};

// gemm, gemv: addresses of cblas_sgemm and cblas_sgemv. wide: their integers have 64 bits.
void use_blas(uintptr_t gemm, uintptr_t gemv, bool wide);
