// A small matmul: a loop of native programs. Examples: tests/ops/native/test_native_programs.py.
#include "cpu_kernels/param_loop.hpp"

#include <algorithm>
#include <cstring>

namespace {

constexpr int64_t COLUMNS = 4;

// Dot products of a and four rows of b: a is read once, and the four accumulators are independent.
INLINED void four_dots(const float* a, const float* b, int64_t row_stride, int64_t count,
                       float* out)
{
#ifdef HAS_VECTOR_EXTENSIONS
    typedef float F32x8 __attribute__((vector_size(32)));
    typedef float UnalignedF32x8 __attribute__((vector_size(32), aligned(4), may_alias));
    constexpr int64_t lanes = 8, parts = 2;
    F32x8 sums[COLUMNS][parts] = {};
    int64_t at = 0;
    for (; at + parts * lanes <= count; at += parts * lanes)
#pragma GCC unroll 4
        for (int64_t row = 0; row < COLUMNS; ++row)
#pragma GCC unroll 2
            for (int64_t part = 0; part < parts; ++part) {
                const float* b_values = b + row * row_stride + at + part * lanes;
                sums[row][part] += *reinterpret_cast<const UnalignedF32x8*>(a + at + part * lanes)
                    * *reinterpret_cast<const UnalignedF32x8*>(b_values);
            }
    for (int64_t row = 0; row < COLUMNS; ++row) {
        float lane_sums[parts * lanes];
        std::memcpy(lane_sums, sums[row], sizeof lane_sums);
        for (int64_t rest = at; rest < count; ++rest)
            lane_sums[0] += a[rest] * b[row * row_stride + rest];
        out[row] = horizontal_sum(lane_sums);
    }
#else
    for (int64_t row = 0; row < COLUMNS; ++row)
        out[row] = dot(a, b + row * row_stride, count);
#endif
}

// int_params: batches, m, n, k; strides of a for batches, rows and columns; strides of b, of which
// that of rows or columns is 1; whether there is a bias.
INLINED void matmul_body(const PlainLoop& loop, const Operands& operands, size_t)
{
    const int64_t* params = loop.int_params.data();
    const int64_t m = params[1], n = params[2], k = params[3], a_stride = params[6],
                  b_row = params[8];
    const float* bias = params[10] ? operands.get<float>(2) : nullptr;
    float* out = loop.result(operands);
    for (int64_t row = 0; row < params[0] * m; ++row, out += n) {
        const int64_t batch = row / m;
        const float* a = operands.get<float>(0) + batch * params[4] + row % m * params[5];
        const float* b = operands.get<float>(1) + batch * params[7];
        if (params[9] == 1) {
            std::fill_n(out, n, 0.0f);
            for (int64_t i = 0; i < k; ++i) {
                const float factor = a[i * a_stride], *row = b + i * b_row;
#pragma GCC ivdep
                for (int64_t column = 0; column < n; ++column)
                    out[column] += factor * row[column];
            }
        } else {
            int64_t column = 0;
            for (; column + COLUMNS <= n; column += COLUMNS)
                four_dots(a, b + column * params[9], params[9], k, out + column);
            for (; column < n; ++column)
                out[column] = dot(a, b + column * params[9], k);
        }
        if (bias)
            for (int64_t column = 0; column < n; ++column)
                out[column] += bias[column];
    }
}

void matmul_extents(const PlainLoop& loop, Extents& extents)
{
    const int64_t* params = loop.int_params.data();
    const int64_t m = params[1], n = params[2], k = params[3],
                  stride_of_a = params[9] == 1 ? params[6] : 1;
    const int64_t row_stride_of_b = params[9] == 1 ? params[8] : 1;
    require(loop.last == (params[10] ? 3u : 2u), "expected a slot for each operand and the result");
    require(k < 2 || (stride_of_a > 0 && row_stride_of_b > 0), "expected positive strides along k");
    extents.add(0, 4, {{params[0], params[4]}, {m, params[5]}, {k, stride_of_a}});
    extents.add(1, 4, {{params[0], params[7]}, {k, row_stride_of_b}, {n, params[9]}});
    extents.add_dense(2, 4, {params[10] ? n : 0});
    extents.add_dense(loop.last, 4, {params[0], m, n});
}

void matmul(const PlainLoop& loop, const Operands& operands, size_t piece)
{
    matmul_body(loop, operands, piece);
}

#ifdef TARGET_AVX2
TARGET_AVX2 void matmul_avx2(const PlainLoop& loop, const Operands& operands, size_t piece)
{
    matmul_body(loop, operands, piece);
}
#else
constexpr PlainLoop::Kernel matmul_avx2 = matmul;
#endif

} // namespace

std::unique_ptr<Loop> matmul_loop(const LoopParams& params)
{
    return param_loop(params, {2, 11, 0}, params.wide && has_avx2() ? matmul_avx2 : matmul,
                     matmul_extents);
}
