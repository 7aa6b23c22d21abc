// A product of float32 matrices by the library that numpy computes with: a step of programs.
//
//   out (m, n) = a (m, k) @ b (k, n) + bias (n,)       pieces: some matrices, rows and columns each
//
// The library takes one thread for each piece (vksched/runtime/cpu/thread_governor.py sees to that), so no
// thread of its own waits for another one. Calls are those that numpy makes, so results are the same
// to the bit. Examples: tests/ops/native/test_matmul_blocks.py.
#include "cpu_kernels/program/gemm.hpp"
#include "cpu_kernels/param_loop.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace {

// As in cblas.h, with integers of 32 or of 64 bits.
constexpr int ROW_MAJOR = 101, COLUMN_MAJOR = 102, AS_IT_IS = 111, TURNED = 112;
template <class Int>
using Gemm = void (*)(int order, int turn_a, int turn_b, Int m, Int n, Int k, float alpha,
                      const float* a, Int a_line, const float* b, Int b_line, float beta, float* out,
                      Int out_line);
template <class Int>
using Gemv = void (*)(int order, int turn, Int rows, Int columns, float alpha, const float* a,
                      Int a_line, const float* x, Int x_step, float beta, float* y, Int y_step);

struct Blas {
    void *gemm = nullptr, *gemv = nullptr;
    bool wide = false; // integers of 64 bits
} blas;

// Elements between two matrices, and of a line of one; turned: lines lie along the other axis.
struct Matrix {
    int64_t batch, line, turned;
};

struct Product {
    int64_t batches, m, n, k;
    Matrix a, b;
    int64_t bias;
    int64_t parts[3]; // of the matrices, of their rows and columns
};

struct Span {
    int64_t first, end;
    int64_t count() const { return end - first; }
};

// Part `number` of some, of whole units but for the last.
Span part_of(int64_t all, int64_t unit, int64_t number, int64_t parts)
{
    const int64_t units = (all + unit - 1) / unit;
    return {std::min(all, units * number / parts * unit),
            std::min(all, units * (number + 1) / parts * unit)};
}

// Outputs of a matrix times a vector.
template <class Int>
void multiply_vector(const float* matrix, Int line, bool along_k, Int k, Int count, const float* x,
                     float* out)
{
    const auto gemv = reinterpret_cast<Gemv<Int>>(blas.gemv);
    gemv(along_k ? COLUMN_MAJOR : ROW_MAJOR, TURNED, k, count, 1.0f, matrix, line, x, 1, 0.0f, out, 1);
}

template <class Int>
void multiply(const Product& told, const float* a, const float* b, float* out, Span rows,
              Span columns)
{
    const Int m = rows.count(), n = columns.count(), k = told.k, a_line = told.a.line,
              b_line = told.b.line, out_line = told.n;
    a += rows.first * (told.a.turned ? 1 : told.a.line);
    b += columns.first * (told.b.turned ? told.b.line : 1);
    if (told.m == 1)
        multiply_vector<Int>(b, b_line, told.b.turned, k, n, a, out);
    else if (told.n == 1)
        multiply_vector<Int>(a, a_line, !told.a.turned, k, m, b, out);
    else
        reinterpret_cast<Gemm<Int>>(blas.gemm)(
            ROW_MAJOR, told.a.turned ? TURNED : AS_IT_IS, told.b.turned ? TURNED : AS_IT_IS, m, n, k,
            1.0f, a, a_line, b, b_line, 0.0f, out, out_line);
}

struct ProductLoop : Loop {
    Product told;

    void run(const Operands& given, size_t piece) const override
    {
        const int64_t number = piece, *parts = told.parts;
        const Span some = part_of(told.batches, 1, number / (parts[1] * parts[2]), parts[0]);
        const int64_t unit = PRODUCT_UNITS[told.n == 1];
        const Span rows = part_of(told.m, unit, number / parts[2] % parts[1], parts[1]);
        const Span columns = part_of(told.n, PRODUCT_UNITS[1], number % parts[2], parts[2]);
        if (rows.count() == 0 || columns.count() == 0)
            return;
        const float* bias = told.bias ? given.get<float>(2) : nullptr;
        float* result = given.get<float>(2 + told.bias);
        for (int64_t batch = some.first; batch < some.end; ++batch) {
            const float* a = given.get<float>(0) + batch * told.a.batch;
            const float* b = given.get<float>(1) + batch * told.b.batch;
            float* out = result + (batch * told.m + rows.first) * told.n + columns.first;
            (blas.wide ? multiply<int64_t> : multiply<int32_t>)(told, a, b, out, rows, columns);
            for (int64_t row = 0; bias && row < rows.count(); ++row)
                for (int64_t column = 0; column < columns.count(); ++column)
                    out[row * told.n + column] += bias[columns.first + column];
        }
    }

    void reach(Extents& to) const override
    {
        const auto matrix = [&](size_t slot, const Matrix& of, int64_t rows, int64_t columns) {
            if (of.turned)
                std::swap(rows, columns);
            to.add(slot, 4, {{told.batches, of.batch}, {rows, of.line}, {columns, 1}});
            require(of.line >= std::max<int64_t>(1, columns), "expected lines that are apart");
            require(blas.wide || of.line <= INT32_MAX, "expected lines that the library can count");
        };
        matrix(0, told.a, told.m, told.k);
        matrix(1, told.b, told.k, told.n);
        to.all(2, 4, {told.bias ? told.n : 0});
        to.all(2 + told.bias, 4, {told.batches, told.m, told.n});
        require(blas.wide || std::max({told.m, told.n, told.k}) <= INT32_MAX,
                "expected sizes that the library can count");
    }
};

} // namespace

void use_blas(uintptr_t gemm, uintptr_t gemv, bool wide)
{
    require(gemm && gemv, "expected the addresses of cblas_sgemm and cblas_sgemv");
    blas = {reinterpret_cast<void*>(gemm), reinterpret_cast<void*>(gemv), wide};
}

// numbers: those of Product, in their order.
std::unique_ptr<Loop> product_loop(const Told& told)
{
    constexpr size_t count = sizeof(Product) / sizeof(int64_t);
    require(blas.gemm, "expected use_blas before products");
    require(told.numbers.size() == count && told.reals.empty(),
            "expected as many numbers and reals as the loop has");
    auto made = std::make_unique<ProductLoop>();
    std::memcpy(&made->told, told.numbers.data(), sizeof(Product));
    const Product& own = made->told;
    require((own.bias == 0 || own.bias == 1) && told.slots == static_cast<size_t>(3 + own.bias),
            "expected a slot for each operand and the result");
    const int64_t *parts = own.parts, all = told.pieces;
    require(std::min({parts[0], parts[1], parts[2]}) > 0
                && std::max({parts[0], parts[1], parts[2]}) <= all
                && parts[0] * parts[1] <= all && parts[0] * parts[1] * parts[2] == all,
            "expected as many pieces as parts of matrices, rows and columns");
    return made;
}
