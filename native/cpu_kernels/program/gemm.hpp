// Matmul by numpy's BLAS library.
#pragma once

#include "cpu_kernels/operands.hpp"

// The rows (of a vector: columns) and columns of a block are multiples of these, except for the
// last block; as in vksched/ops/linalg/matmul_blocks.py.
constexpr int64_t GEMM_BLOCK_UNITS[] = {12, 32};

// gemm, gemv: addresses of cblas_sgemm and cblas_sgemv. is_ilp64: their integers have 64 bits.
void use_blas(uintptr_t gemm, uintptr_t gemv, bool is_ilp64);
