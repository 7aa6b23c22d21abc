// A small product of matrices: a step of programs. Examples: tests/ops/native/test_native_programs.py.
#include "cpu_kernels/param_loop.hpp"

#include <algorithm>
#include <cstring>

namespace {

constexpr int64_t FOUR = 4;

// The same sums of a with b and the lines behind it, each `apart` from the one before: a is read once
// for all, and none waits for the sum before.
INLINED void four_dots(const float* a, const float* b, int64_t apart, int64_t count, float* out)
{
#ifdef HAS_VECTORS
    typedef float Eight __attribute__((vector_size(32)));
    typedef float Loose __attribute__((vector_size(32), aligned(4), may_alias));
    constexpr int64_t lanes = 8, parts = 2;
    Eight sums[FOUR][parts] = {};
    int64_t at = 0;
    for (; at + parts * lanes <= count; at += parts * lanes)
#pragma GCC unroll 4
        for (int64_t line = 0; line < FOUR; ++line)
#pragma GCC unroll 2
            for (int64_t part = 0; part < parts; ++part) {
                const float* own = b + line * apart + at + part * lanes;
                sums[line][part] += *reinterpret_cast<const Loose*>(a + at + part * lanes)
                    * *reinterpret_cast<const Loose*>(own);
            }
    for (int64_t line = 0; line < FOUR; ++line) {
        float each[parts * lanes];
        std::memcpy(each, sums[line], sizeof each);
        for (int64_t rest = at; rest < count; ++rest)
            each[0] += a[rest] * b[line * apart + rest];
        out[line] = total_of(each);
    }
#else
    for (int64_t line = 0; line < FOUR; ++line)
        out[line] = dot(a, b + line * apart, count);
#endif
}

// A small product. numbers: batches, m, n, k; of a how far batches, rows and columns are from one
// another; the same of b, of whose rows or columns the neighbours are 1 apart; whether it has a bias.
INLINED void matmul_body(const PlainLoop& step, const Operands& given, size_t)
{
    const int64_t* told = step.numbers.data();
    const int64_t m = told[1], n = told[2], k = told[3], a_step = told[6], b_row = told[8];
    const float* bias = told[10] ? given.get<float>(2) : nullptr;
    float* out = step.result(given);
    for (int64_t line = 0; line < told[0] * m; ++line, out += n) {
        const int64_t batch = line / m;
        const float* a = given.get<float>(0) + batch * told[4] + line % m * told[5];
        const float* b = given.get<float>(1) + batch * told[7];
        if (told[9] == 1) {
            std::fill_n(out, n, 0.0f);
            for (int64_t i = 0; i < k; ++i) {
                const float factor = a[i * a_step], *row = b + i * b_row;
#pragma GCC ivdep
                for (int64_t column = 0; column < n; ++column)
                    out[column] += factor * row[column];
            }
        } else {
            int64_t column = 0;
            for (; column + FOUR <= n; column += FOUR)
                four_dots(a, b + column * told[9], told[9], k, out + column);
            for (; column < n; ++column)
                out[column] = dot(a, b + column * told[9], k);
        }
        if (bias)
            for (int64_t column = 0; column < n; ++column)
                out[column] += bias[column];
    }
}

void matmul_reach(const PlainLoop& step, Extents& to)
{
    const int64_t* told = step.numbers.data();
    const int64_t m = told[1], n = told[2], k = told[3], step_of_a = told[9] == 1 ? told[6] : 1;
    const int64_t row_of_b = told[9] == 1 ? told[8] : 1;
    require(step.last == (told[10] ? 3u : 2u), "expected a slot for each operand and the result");
    require(k < 2 || (step_of_a > 0 && row_of_b > 0), "expected sums over elements that are apart");
    to.add(0, 4, {{told[0], told[4]}, {m, told[5]}, {k, step_of_a}});
    to.add(1, 4, {{told[0], told[7]}, {k, row_of_b}, {n, told[9]}});
    to.all(2, 4, {told[10] ? n : 0});
    to.all(step.last, 4, {told[0], m, n});
}

void matmul(const PlainLoop& step, const Operands& given, size_t piece)
{
    matmul_body(step, given, piece);
}

#ifdef WIDE
WIDE void matmul_wide(const PlainLoop& step, const Operands& given, size_t piece)
{
    matmul_body(step, given, piece);
}
#else
constexpr PlainLoop::Way matmul_wide = matmul;
#endif

} // namespace

std::unique_ptr<Loop> matmul_loop(const Told& told)
{
    return told_loop(told, {2, 11, 0}, told.wide && has_wide() ? matmul_wide : matmul,
                     matmul_reach);
}
