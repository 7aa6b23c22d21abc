// Matmul of float32 matrices by numpy's BLAS library: a loop of native programs.
//
//   out (m, n) = a (m, k) @ b (k, n) + bias (n,)     a piece: a block of matrices, rows, columns
//
// The library uses one thread for each piece (vksched/runtime/cpu/thread_governor.py limits it), so
// that its threads do not wait for each other. The calls are those that numpy makes: results are
// equal bit by bit. Examples: tests/ops/native/test_matmul_blocks.py.
#include "cpu_kernels/program/gemm.hpp"
#include "cpu_kernels/param_loop.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace {

// As in cblas.h, with 32-bit or 64-bit integers (LP64, ILP64).
constexpr int ROW_MAJOR = 101, COLUMN_MAJOR = 102, NO_TRANSPOSE = 111, TRANSPOSE = 112;
template <class Int>
using Gemm = void (*)(int order, int trans_a, int trans_b, Int m, Int n, Int k, float alpha,
                      const float* a, Int lda, const float* b, Int ldb, float beta, float* out,
                      Int ldc);
template <class Int>
using Gemv = void (*)(int order, int trans, Int rows, Int columns, float alpha, const float* a,
                      Int lda, const float* x, Int x_step, float beta, float* y, Int y_step);

struct Blas {
    void *gemm = nullptr, *gemv = nullptr;
    bool is_ilp64 = false; // 64-bit integers
} blas;

// batch, row_stride: in elements. transposed: stored column by column.
struct Matrix {
    int64_t batch, row_stride, transposed;
};

struct GemmParams {
    int64_t batches, m, n, k;
    Matrix a, b;
    int64_t bias;
    int64_t blocks[3]; // of batches, rows and columns
};

struct Span {
    int64_t first, end;
    int64_t count() const { return end - first; }
};

// Return block `number` of `blocks`. All but the last are multiples of `unit`.
Span block_of(int64_t all, int64_t unit, int64_t number, int64_t blocks)
{
    const int64_t units = (all + unit - 1) / unit;
    return {std::min(all, units * number / blocks * unit),
            std::min(all, units * (number + 1) / blocks * unit)};
}

// Multiply a matrix and a vector.
template <class Int>
void call_gemv(const float* matrix, Int row_stride, bool along_k, Int k, Int count, const float* x,
                     float* out)
{
    const auto gemv = reinterpret_cast<Gemv<Int>>(blas.gemv);
    gemv(along_k ? COLUMN_MAJOR : ROW_MAJOR, TRANSPOSE, k, count, 1.0f, matrix, row_stride, x, 1,
         0.0f, out, 1);
}

template <class Int>
void call_gemm(const GemmParams& gemm, const float* a, const float* b, float* out, Span rows,
              Span columns)
{
    const Int m = rows.count(), n = columns.count(), k = gemm.k, lda = gemm.a.row_stride,
              ldb = gemm.b.row_stride, ldc = gemm.n;
    a += rows.first * (gemm.a.transposed ? 1 : gemm.a.row_stride);
    b += columns.first * (gemm.b.transposed ? gemm.b.row_stride : 1);
    if (gemm.m == 1)
        call_gemv<Int>(b, ldb, gemm.b.transposed, k, n, a, out);
    else if (gemm.n == 1)
        call_gemv<Int>(a, lda, !gemm.a.transposed, k, m, b, out);
    else
        reinterpret_cast<Gemm<Int>>(blas.gemm)(ROW_MAJOR,
                                               gemm.a.transposed ? TRANSPOSE : NO_TRANSPOSE,
                                               gemm.b.transposed ? TRANSPOSE : NO_TRANSPOSE, m, n,
                                               k, 1.0f, a, lda, b, ldb, 0.0f, out, ldc);
}

struct GemmLoop : Loop {
    GemmParams gemm;

    void run(const Operands& operands, size_t piece) const override
    {
        const int64_t number = piece, *blocks = gemm.blocks;
        const Span batches = block_of(gemm.batches, 1, number / (blocks[1] * blocks[2]), blocks[0]);
        const int64_t unit = GEMM_BLOCK_UNITS[gemm.n == 1];
        const Span rows = block_of(gemm.m, unit, number / blocks[2] % blocks[1], blocks[1]);
        const Span columns = block_of(gemm.n, GEMM_BLOCK_UNITS[1], number % blocks[2], blocks[2]);
        if (rows.count() == 0 || columns.count() == 0)
            return;
        const float* bias = gemm.bias ? operands.get<float>(2) : nullptr;
        float* result = operands.get<float>(2 + gemm.bias);
        for (int64_t batch = batches.first; batch < batches.end; ++batch) {
            const float* a = operands.get<float>(0) + batch * gemm.a.batch;
            const float* b = operands.get<float>(1) + batch * gemm.b.batch;
            float* out = result + (batch * gemm.m + rows.first) * gemm.n + columns.first;
            (blas.is_ilp64 ? call_gemm<int64_t> : call_gemm<int32_t>)(gemm, a, b, out, rows,
                                                                      columns);
            for (int64_t row = 0; bias && row < rows.count(); ++row)
                for (int64_t column = 0; column < columns.count(); ++column)
                    out[row * gemm.n + column] += bias[columns.first + column];
        }
    }

    void add_extents(Extents& extents) const override
    {
        const auto matrix = [&](size_t slot, const Matrix& of, int64_t rows, int64_t columns) {
            if (of.transposed)
                std::swap(rows, columns);
            extents.add(slot, 4, {{gemm.batches, of.batch}, {rows, of.row_stride}, {columns, 1}});
            require(of.row_stride >= std::max<int64_t>(1, columns),
                    "expected rows that do not overlap");
            require(blas.is_ilp64 || of.row_stride <= INT32_MAX, "expected strides below 2^31");
        };
        matrix(0, gemm.a, gemm.m, gemm.k);
        matrix(1, gemm.b, gemm.k, gemm.n);
        extents.add_dense(2, 4, {gemm.bias ? gemm.n : 0});
        extents.add_dense(2 + gemm.bias, 4, {gemm.batches, gemm.m, gemm.n});
        require(blas.is_ilp64 || std::max({gemm.m, gemm.n, gemm.k}) <= INT32_MAX,
                "expected sizes below 2^31");
    }
};

} // namespace

void use_blas(uintptr_t gemm, uintptr_t gemv, bool is_ilp64)
{
    require(gemm && gemv, "expected the addresses of cblas_sgemm and cblas_sgemv");
    blas = {reinterpret_cast<void*>(gemm), reinterpret_cast<void*>(gemv), is_ilp64};
}

// int_params: the fields of GemmParams, in their order.
std::unique_ptr<Loop> gemm_loop(const LoopParams& params)
{
    constexpr size_t count = sizeof(GemmParams) / sizeof(int64_t);
    require(blas.gemm, "expected use_blas before gemm loops");
    require(params.int_params.size() == count && params.float_params.empty(),
            "expected as many int_params and float_params as the loop has");
    auto loop = std::make_unique<GemmLoop>();
    std::memcpy(&loop->gemm, params.int_params.data(), sizeof(GemmParams));
    const GemmParams& gemm = loop->gemm;
    require((gemm.bias == 0 || gemm.bias == 1)
                && params.slots == static_cast<size_t>(3 + gemm.bias),
            "expected a slot for each operand and the result");
    const int64_t *blocks = gemm.blocks, all = params.pieces;
    require(std::min({blocks[0], blocks[1], blocks[2]}) > 0
                && std::max({blocks[0], blocks[1], blocks[2]}) <= all
                && blocks[0] * blocks[1] <= all && blocks[0] * blocks[1] * blocks[2] == all,
            "expected one piece for each block of matrices, rows and columns");
    return loop;
}
