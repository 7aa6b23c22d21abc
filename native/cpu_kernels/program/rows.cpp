// Rows of programs: softmax, rotary embedding, and rows written into a value.
// Examples: tests/ops/native/test_native_programs.py.
#include "cpu_kernels/param_loop.hpp"

#include <algorithm>
#include <cstring>

namespace {

using SoftmaxLoop = ToldLoop<ValueLoop>;

// Rows of the last axis. numbers: rows, columns. A piece: some rows.
INLINED void softmax_body(const SoftmaxLoop& step, const Operands& given, size_t piece)
{
    const int64_t rows = step.numbers[0], columns = step.numbers[1];
    const int64_t first = step.first_row(rows, piece), end = step.first_row(rows, piece + 1);
    const float* x = given.get<float>(0) + first * columns;
    float* out = step.result(given) + first * columns;
    constexpr int64_t lanes = 16;
    for (int64_t row = first; row < end; ++row, x += columns, out += columns) {
        float largest = x[0], sums[lanes] = {};
        for (int64_t i = 1; i < columns; ++i)
            largest = largest > x[i] || largest != largest ? largest : x[i]; // NaN wins
#pragma GCC ivdep
        for (int64_t i = 0; i < columns; ++i)
            out[i] = x[i] - largest;
        step.called(out, out, columns);
        int64_t i = 0;
        for (; i + lanes <= columns; i += lanes)
            for (int64_t lane = 0; lane < lanes; ++lane)
                sums[lane] += out[i + lane];
        for (; i < columns; ++i)
            sums[0] += out[i];
        const float total = total_of(sums);
#pragma GCC ivdep
        for (i = 0; i < columns; ++i)
            out[i] /= total;
    }
}

void softmax_reach(const SoftmaxLoop& step, Extents& to)
{
    require(step.numbers[0] == 0 || step.numbers[1] > 0, "expected rows with columns");
    for (size_t slot = 0; slot < 2; ++slot)
        to.all(slot, 4, {step.numbers[0], step.numbers[1]});
}

// x (batch, head, row, depth) by cos, sin (row, half) or (batch, row, half). numbers: batches,
// heads, rows, depth, half, interleaved, elements of a batch of cos, and of sin.
INLINED void rotary_body(const PlainLoop& step, const Operands& given, size_t)
{
    const int64_t* told = step.numbers.data();
    const int64_t rows = told[2], depth = told[3], half = told[4];
    const float* x = given.get<float>(0);
    float* out = step.result(given);
    for (int64_t line = 0; line < told[0] * told[1] * rows; ++line, x += depth, out += depth) {
        const int64_t batch = line / (told[1] * rows), row = line % rows;
        const float* cos = given.get<float>(1) + batch * told[6] + row * half;
        const float* sin = given.get<float>(2) + batch * told[7] + row * half;
        if (told[5]) {
#pragma GCC ivdep
            for (int64_t i = 0; i < half; ++i) {
                const float a = x[2 * i], b = x[2 * i + 1];
                out[2 * i] = a * cos[i] - b * sin[i];
                out[2 * i + 1] = a * sin[i] + b * cos[i];
            }
        } else {
#pragma GCC ivdep
            for (int64_t i = 0; i < half; ++i) {
                const float a = x[i], b = x[half + i];
                out[i] = a * cos[i] - b * sin[i];
                out[half + i] = a * sin[i] + b * cos[i];
            }
        }
        std::copy(x + 2 * half, x + depth, out + 2 * half);
    }
}

void rotary_reach(const PlainLoop& step, Extents& to)
{
    const int64_t* told = step.numbers.data();
    require(told[4] >= 0 && told[4] <= told[3] / 2, "expected pairs within the depth");
    to.all(0, 4, {told[0], told[1], told[2], told[3]});
    to.all(3, 4, {told[0], told[1], told[2], told[3]});
    for (size_t slot = 1; slot < 3; ++slot)
        to.add(slot, 4, {{told[0], told[5 + slot]}, {told[2], told[4]}, {told[4], 1}});
}

// Rows written into the value of slot 0. numbers: lines (outer indices), lines of a start, rows of
// a line there, rows given, bytes of a row, whether starts are int64.
void write_rows(const PlainLoop& step, const Operands& given, size_t)
{
    const int64_t* told = step.numbers.data();
    const int64_t size = told[2], many = told[3], bytes = told[4];
    char* data = given.get<char>(0);
    const char *rows = given.get<char>(1), *starts = given.get<char>(2);
    for (int64_t line = 0; line < told[0]; ++line) {
        const int64_t first = whole_number(starts, line / told[1], told[5] != 0);
        const int64_t begin = std::max<int64_t>(0, -first), end = std::min(many, size - first);
        if (begin < end)
            std::memcpy(data + (line * size + first + begin) * bytes,
                        rows + (line * many + begin) * bytes, (end - begin) * bytes);
    }
}

void write_reach(const PlainLoop& step, Extents& to)
{
    const int64_t* told = step.numbers.data();
    require(told[1] > 0, "expected lines of a start");
    to.all(0, 1, {told[0], told[2], told[4]});
    to.all(1, 1, {told[0], told[3], told[4]});
    to.all(2, told[5] ? 8 : 4, {told[0] / told[1] + (told[0] % told[1] != 0)});
}

void softmax(const SoftmaxLoop& step, const Operands& given, size_t piece)
{
    softmax_body(step, given, piece);
}

void rotary(const PlainLoop& step, const Operands& given, size_t piece)
{
    rotary_body(step, given, piece);
}

#ifdef WIDE
WIDE void softmax_wide(const SoftmaxLoop& step, const Operands& given, size_t piece)
{
    softmax_body(step, given, piece);
}

WIDE void rotary_wide(const PlainLoop& step, const Operands& given, size_t piece)
{
    rotary_body(step, given, piece);
}
#else
constexpr SoftmaxLoop::Way softmax_wide = softmax;
constexpr PlainLoop::Way rotary_wide = rotary;
#endif

} // namespace

std::unique_ptr<Loop> rotary_loop(const Told& told)
{
    return told_loop(told, {3, 8, 0}, told.wide && has_wide() ? rotary_wide : rotary,
                     rotary_reach);
}

std::unique_ptr<Loop> softmax_loop(const Told& told)
{
    return told_loop(told, {1, 2, 0}, told.wide && has_wide() ? softmax_wide : softmax,
                     softmax_reach, value_loop("exp", told.wide));
}

std::unique_ptr<Loop> write_rows_loop(const Told& told)
{
    return told_loop(told, {2, 6, 0}, write_rows, write_reach);
}
