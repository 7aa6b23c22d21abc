// Softmax, rotary embedding, and updates of rows: loops of native programs. Examples:
// tests/ops/native/test_native_programs.py.
#include "cpu_kernels/param_loop.hpp"

#include <algorithm>
#include <cstring>

namespace {

using SoftmaxLoop = ParamLoop<UnaryKernel>;

// Softmax of rows. int_params: rows, columns. A piece is a range of rows.
INLINED void softmax_body(const SoftmaxLoop& loop, const Operands& operands, size_t piece)
{
    const int64_t rows = loop.int_params[0], columns = loop.int_params[1];
    const int64_t first = loop.first_row(rows, piece), end = loop.first_row(rows, piece + 1);
    const float* x = operands.get<float>(0) + first * columns;
    float* out = loop.result(operands) + first * columns;
    constexpr int64_t lanes = 16;
    for (int64_t row = first; row < end; ++row, x += columns, out += columns) {
        float largest = x[0], sums[lanes] = {};
        for (int64_t i = 1; i < columns; ++i)
            largest = largest > x[i] || largest != largest ? largest : x[i]; // NaN propagates
#pragma GCC ivdep
        for (int64_t i = 0; i < columns; ++i)
            out[i] = x[i] - largest;
        loop.callee(out, out, columns);
        int64_t i = 0;
        for (; i + lanes <= columns; i += lanes)
            for (int64_t lane = 0; lane < lanes; ++lane)
                sums[lane] += out[i + lane];
        for (; i < columns; ++i)
            sums[0] += out[i];
        const float total = horizontal_sum(sums);
#pragma GCC ivdep
        for (i = 0; i < columns; ++i)
            out[i] /= total;
    }
}

void softmax_extents(const SoftmaxLoop& loop, Extents& extents)
{
    require(loop.int_params[0] == 0 || loop.int_params[1] > 0, "expected rows with columns");
    for (size_t slot = 0; slot < 2; ++slot)
        extents.add_dense(slot, 4, {loop.int_params[0], loop.int_params[1]});
}

// Rotary embedding of x (batch, head, row, depth) by cos, sin (row, half) or (batch, row, half).
// int_params: batches, heads, rows, depth, half, interleaved, batch strides of cos and sin.
INLINED void rotary_body(const PlainLoop& loop, const Operands& operands, size_t)
{
    const int64_t* params = loop.int_params.data();
    const int64_t rows = params[2], depth = params[3], half = params[4];
    const float* x = operands.get<float>(0);
    float* out = loop.result(operands);
    for (int64_t line = 0; line < params[0] * params[1] * rows; ++line, x += depth, out += depth) {
        const int64_t batch = line / (params[1] * rows), row = line % rows;
        const float* cos = operands.get<float>(1) + batch * params[6] + row * half;
        const float* sin = operands.get<float>(2) + batch * params[7] + row * half;
        if (params[5]) {
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

void rotary_extents(const PlainLoop& loop, Extents& extents)
{
    const int64_t* params = loop.int_params.data();
    require(params[4] >= 0 && params[4] <= params[3] / 2, "expected pairs within the depth");
    extents.add_dense(0, 4, {params[0], params[1], params[2], params[3]});
    extents.add_dense(3, 4, {params[0], params[1], params[2], params[3]});
    for (size_t slot = 1; slot < 3; ++slot)
        extents.add(slot, 4,
                    {{params[0], params[5 + slot]}, {params[2], params[4]}, {params[4], 1}});
}

// Write rows into the value of slot 0. int_params: outer slices to write, slices for each start, rows
// of a slice, rows to write, bytes of a row, whether starts are int64, slots. With slots, starts are
// pairs of a start and a slot: the slices of a start go to those of its slot.
void dynamic_update_slice(const PlainLoop& loop, const Operands& operands, size_t)
{
    const int64_t* params = loop.int_params.data();
    const int64_t size = params[2], count = params[3], bytes = params[4];
    char* data = operands.get<char>(0);
    const char *rows = operands.get<char>(1), *starts = operands.get<char>(2);
    const int64_t slots = params[6];
    for (int64_t line = 0; line < params[0]; ++line) {
        const int64_t example = line / params[1];
        const int64_t first = read_index(starts, slots ? 2 * example : example, params[5] != 0);
        int64_t target = line;
        if (slots) {
            const int64_t slot = read_index(starts, 2 * example + 1, params[5] != 0);
            if (slot < 0 || slot >= slots)
                continue;
            target = slot * params[1] + line % params[1];
        }
        const int64_t begin = std::max<int64_t>(0, -first), end = std::min(count, size - first);
        if (begin < end)
            std::memcpy(data + (target * size + first + begin) * bytes,
                        rows + (line * count + begin) * bytes, (end - begin) * bytes);
    }
}

void dynamic_update_slice_extents(const PlainLoop& loop, Extents& extents)
{
    const int64_t* params = loop.int_params.data();
    require(params[1] > 0 && params[6] >= 0, "expected at least one slice for each start");
    const int64_t examples = params[0] / params[1] + (params[0] % params[1] != 0);
    if (params[6])
        extents.add_dense(0, 1, {params[6], params[1], params[2], params[4]});
    else
        extents.add_dense(0, 1, {params[0], params[2], params[4]});
    extents.add_dense(1, 1, {params[0], params[3], params[4]});
    extents.add_dense(2, params[5] ? 8 : 4, {examples, params[6] ? 2 : 1});
}

void softmax(const SoftmaxLoop& loop, const Operands& operands, size_t piece)
{
    softmax_body(loop, operands, piece);
}

void rotary(const PlainLoop& loop, const Operands& operands, size_t piece)
{
    rotary_body(loop, operands, piece);
}

#ifdef TARGET_AVX2
TARGET_AVX2 void softmax_avx2(const SoftmaxLoop& loop, const Operands& operands, size_t piece)
{
    softmax_body(loop, operands, piece);
}

TARGET_AVX2 void rotary_avx2(const PlainLoop& loop, const Operands& operands, size_t piece)
{
    rotary_body(loop, operands, piece);
}
#else
constexpr SoftmaxLoop::Kernel softmax_avx2 = softmax;
constexpr PlainLoop::Kernel rotary_avx2 = rotary;
#endif

} // namespace

std::unique_ptr<Loop> rotary_loop(const LoopParams& params)
{
    return param_loop(params, {3, 8, 0}, params.wide && has_avx2() ? rotary_avx2 : rotary,
                     rotary_extents);
}

std::unique_ptr<Loop> softmax_loop(const LoopParams& params)
{
    return param_loop(params, {1, 2, 0}, params.wide && has_avx2() ? softmax_avx2 : softmax,
                     softmax_extents, unary_kernel("exp", params.wide));
}

std::unique_ptr<Loop> dynamic_update_slice_loop(const LoopParams& params)
{
    return param_loop(params, {2, 7, 0}, dynamic_update_slice, dynamic_update_slice_extents);
}
