// Data movement of 32-bit elements, and reductions along an axis: loops of native programs.
//
//   copy     strided copy of a value, or into a region of a filled one (pad, slice, transpose)
//   concat   concatenation along an axis
//   gather   rows of a table by indices
//   reduce   sum, mean, max and min along an axis
//
// Examples: tests/ops/native/test_native_programs.py.
#include "cpu_kernels/operands.hpp"
#include "cpu_kernels/vectors.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <vector>

namespace {

constexpr int64_t AXES = 6;
using Dims = std::array<int64_t, AXES>;

Dims read_dims(const LoopParams& params, size_t at)
{
    Dims dims{};
    require(params.int_params.size() >= at + AXES, "expected as many int_params as the loop has");
    std::copy_n(params.int_params.begin() + at, AXES, dims.begin());
    return dims;
}

// sizes: of the copied elements, innermost axis first. x_strides, out_strides: in elements.
// fill_count: elements of the result that are set to `fill` first.
struct CopyLoop : Loop {
    Dims sizes, x_strides, out_strides;
    int64_t x_offset, out_offset, fill_count; 
    uint32_t fill;
    int64_t pieces;

    void run(const Operands& operands, size_t piece) const override
    {
        const uint32_t* x = operands.get<uint32_t>(0) + x_offset;
        uint32_t* out = operands.get<uint32_t>(1);
        if (fill_count)
            std::fill_n(out, fill_count, fill);
        out += out_offset;
        int64_t lines = 1;
        for (int64_t axis = 1; axis < AXES; ++axis)
            lines *= sizes[axis];
        const int64_t index = piece, end = lines * (index + 1) / pieces;
        for (int64_t line = lines * index / pieces; line < end; ++line) {
            int64_t left = line, at = 0, place = 0;
            for (int64_t axis = 1; axis < AXES; ++axis) {
                const int64_t number = left % sizes[axis];
                left /= sizes[axis];
                at += number * x_strides[axis];
                place += number * out_strides[axis];
            }
            if (x_strides[0] == 1 && out_strides[0] == 1)
                std::memcpy(out + place, x + at, 4 * sizes[0]);
            else
                for (int64_t column = 0; column < sizes[0]; ++column)
                    out[place + column * out_strides[0]] = x[at + column * x_strides[0]];
        }
    }

    void add_extents(Extents& extents) const override
    {
        const auto along = [&](size_t slot, const Dims& strides, int64_t at) {
            extents.add(slot, 4,
                        {{sizes[0], strides[0]},
                         {sizes[1], strides[1]},
                         {sizes[2], strides[2]},
                         {sizes[3], strides[3]},
                         {sizes[4], strides[4]},
                         {sizes[5], strides[5]}},
                        at);
        };
        along(0, x_strides, x_offset);
        along(1, out_strides, out_offset);
        extents.add_dense(1, 4,
                          {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4],
                           sizes[5]}); // no element is written twice
        extents.add_dense(1, 4, {fill_count});
    }
};

struct ConcatLoop : Loop {
    int64_t lines;
    std::vector<int64_t> widths; // row length of each operand, in elements

    void run(const Operands& operands, size_t) const override
    {
        uint32_t* out = operands.get<uint32_t>(widths.size());
        for (int64_t line = 0; line < lines; ++line)
            for (size_t operand = 0; operand < widths.size(); ++operand) {
                const int64_t width = widths[operand];
                std::memcpy(out, operands.get<uint32_t>(operand) + line * width, 4 * width);
                out += width;
            }
    }

    void add_extents(Extents& extents) const override
    {
        int64_t all = 0;
        for (size_t operand = 0; operand < widths.size(); ++operand) {
            extents.add_dense(operand, 4, {lines, widths[operand]});
            require(widths[operand] < int64_t{1} << 48, "expected rows below 2^48 elements");
            all += widths[operand];
        }
        extents.add_dense(widths.size(), 4, {lines, all});
    }
};

struct GatherLoop : Loop {
    int64_t outer, size, inner, index_count;
    bool is_int64;

    int64_t index(const Operands& operands, int64_t number) const
    {
        const int64_t at =
            is_int64 ? operands.get<int64_t>(1)[number] : operands.get<int32_t>(1)[number];
        if (at < -size || at >= size)
            throw std::out_of_range("[gather] expected indices in " + std::to_string(-size) + ".."
                                    + std::to_string(size - 1) + ", got " + std::to_string(at));
        return at < 0 ? at + size : at;
    }

    void run(const Operands& operands, size_t) const override
    {
        std::vector<int64_t> places(index_count);
        for (int64_t pick = 0; pick < index_count; ++pick)
            places[pick] = index(operands, pick);
        const uint32_t* table = operands.get<uint32_t>(0);
        uint32_t* out = operands.get<uint32_t>(2);
        for (int64_t line = 0; line < outer; ++line, table += size * inner)
            for (const int64_t place : places) {
                if (inner == 1)
                    *out = table[place];
                else
                    std::memcpy(out, table + place * inner, 4 * inner);
                out += inner;
            }
    }

    void add_extents(Extents& extents) const override
    {
        extents.add_dense(0, 4, {outer, size, inner});
        extents.add_dense(1, is_int64 ? 8 : 4, {index_count});
        extents.add_dense(2, 4, {outer, index_count, inner});
    }
};

enum Kind { SUM, MEAN, MAX, MIN };

// The maximum or minimum along the first axis: (count, inner) -> (inner).
using Extreme = void (*)(const float*, int64_t, int64_t, float*);

template <Kind KIND>
INLINED float select_extreme(float value, float best) // NaN propagates
{
    return (KIND == MAX ? value > best : value < best) || value != value ? value : best;
}

// Lanes are reduced independently: the extreme value does not depend on the order.
template <Kind KIND>
INLINED void extreme_body(const float* x, int64_t count, int64_t inner, float* out)
{
    constexpr int64_t lanes = 32;
    if (inner > 1) {
        std::copy_n(x, inner, out);
        for (int64_t row = 1; row < count; ++row) {
            x += inner;
#pragma GCC ivdep
            for (int64_t column = 0; column < inner; ++column)
                out[column] = select_extreme<KIND>(x[column], out[column]);
        }
        return;
    }
    float best[lanes], extremum = x[0];
    std::fill_n(best, lanes, extremum);
    int64_t at = 0;
    for (; at + lanes <= count; at += lanes)
        for (int64_t lane = 0; lane < lanes; ++lane)
            best[lane] = select_extreme<KIND>(x[at + lane], best[lane]);
    for (; at < count; ++at)
        extremum = select_extreme<KIND>(x[at], extremum);
    for (const float each : best)
        extremum = select_extreme<KIND>(each, extremum);
    *out = extremum;
}

template <Kind KIND>
void extreme(const float* x, int64_t count, int64_t inner, float* out)
{
    extreme_body<KIND>(x, count, inner, out);
}

#ifdef TARGET_AVX2
template <Kind KIND>
TARGET_AVX2 void extreme_avx2(const float* x, int64_t count, int64_t inner, float* out)
{
    extreme_body<KIND>(x, count, inner, out);
}
#else
template <Kind KIND>
constexpr Extreme extreme_avx2 = extreme<KIND>;
#endif

template <Kind KIND>
Extreme extreme_kernel(bool wide)
{
    return wide && has_avx2() ? extreme_avx2<KIND> : extreme<KIND>;
}

// x: (outer, count, inner) -> (outer, inner). Sums are float64, as numpy's.
struct ReduceLoop : Loop {
    int64_t kind, outer, count, inner, pieces;
    Extreme extreme; // kernel of MAX and MIN

    void run(const Operands& operands, size_t piece) const override
    {
        const int64_t index = piece, end = outer * (index + 1) / pieces;
        for (int64_t line = outer * index / pieces; line < end; ++line) {
            const float* x = operands.get<float>(0) + line * count * inner;
            float* out = operands.get<float>(1) + line * inner;
            if (kind == MAX || kind == MIN)
                extreme(x, count, inner, out);
            else if (inner == 1)
                *out = static_cast<float>(total(x) / divisor());
            else
                columns(x, out);
        }
    }

    void add_extents(Extents& extents) const override
    {
        extents.add_dense(0, 4, {outer, count, inner});
        extents.add_dense(1, 4, {outer, inner});
    }

    double divisor() const { return kind == MEAN ? static_cast<double>(count) : 1.0; }

    double total(const float* x) const
    {
        constexpr int64_t lanes = 8;
        double sums[lanes] = {}, sum = 0;
        int64_t at = 0;
        for (; at + lanes <= count; at += lanes)
            for (int64_t lane = 0; lane < lanes; ++lane)
                sums[lane] += x[at + lane];
        for (; at < count; ++at)
            sums[0] += x[at];
        for (const double part : sums)
            sum += part;
        return sum;
    }

    void columns(const float* x, float* out) const
    {
        std::vector<double> sums(inner, 0.0);
        for (int64_t row = 0; row < count; ++row, x += inner)
            for (int64_t column = 0; column < inner; ++column)
                sums[column] += x[column];
        for (int64_t column = 0; column < inner; ++column)
            out[column] = static_cast<float>(sums[column] / divisor());
    }

};

} // namespace

// int_params: sizes, x_strides, out_strides, x_offset, out_offset, fill_count, fill.
std::unique_ptr<Loop> copy_loop(const LoopParams& params)
{
    require(params.int_params.size() == 3 * AXES + 4 && params.slots == 2,
            "expected as many int_params and slots as the loop has");
    auto loop = std::make_unique<CopyLoop>();
    loop->sizes = read_dims(params, 0);
    loop->x_strides = read_dims(params, AXES);
    loop->out_strides = read_dims(params, 2 * AXES);
    const auto rest = params.int_params.begin() + 3 * AXES;
    loop->x_offset = rest[0];
    loop->out_offset = rest[1];
    loop->fill_count = rest[2];
    loop->fill = static_cast<uint32_t>(rest[3]);
    loop->pieces = params.pieces;
    require(!loop->fill_count || params.pieces == 1, "expected one piece if the result is filled");
    return loop;
}

// int_params: rows, and the row length of each operand.
std::unique_ptr<Loop> concat_loop(const LoopParams& params)
{
    require(params.slots > 1 && params.int_params.size() == params.slots,
            "expected a row length for each operand");
    auto loop = std::make_unique<ConcatLoop>();
    loop->lines = params.int_params.at(0);
    loop->widths.assign(params.int_params.begin() + 1, params.int_params.end());
    return loop;
}

// int_params: outer, size, inner, index_count, whether indices are int64.
std::unique_ptr<Loop> gather_loop(const LoopParams& params)
{
    require(params.int_params.size() == 5 && params.slots == 3,
            "expected as many int_params and slots as the loop has");
    auto loop = std::make_unique<GatherLoop>();
    loop->outer = params.int_params[0];
    loop->size = params.int_params[1];
    loop->inner = params.int_params[2];
    loop->index_count = params.int_params[3];
    loop->is_int64 = params.int_params[4] != 0;
    return loop;
}

// int_params: kind (0 sum, 1 mean, 2 max, 3 min), outer, count, inner.
std::unique_ptr<Loop> reduce_loop(const LoopParams& params)
{
    require(params.int_params.size() == 4 && params.slots == 2 && params.int_params[2] > 0
                && params.int_params[3] > 0 && params.int_params[0] >= SUM
                && params.int_params[0] <= MIN,
            "expected as many int_params and slots as the loop has");
    auto loop = std::make_unique<ReduceLoop>();
    loop->kind = params.int_params[0];
    loop->outer = params.int_params[1];
    loop->count = params.int_params[2];
    loop->inner = params.int_params[3];
    loop->pieces = params.pieces;
    loop->extreme = loop->kind == MAX ? extreme_kernel<MAX>(params.wide)
                                          : extreme_kernel<MIN>(params.wide);
    return loop;
}
