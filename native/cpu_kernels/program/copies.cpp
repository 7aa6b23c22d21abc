// Loops that move words, and sums along an axis: steps of native programs.
//
//   copy     words of one value to their places in another one, among words of one kind
//   concat   values beside each other along an axis
//   gather   lines of a table by numbers
//   reduce   sums, means, largest and least values along an axis
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
using Six = std::array<int64_t, AXES>;

Six six(const Told& told, size_t at)
{
    Six taken{};
    require(told.numbers.size() >= at + AXES, "expected as many numbers as the loop has");
    std::copy_n(told.numbers.begin() + at, AXES, taken.begin());
    return taken;
}

// sizes: of what is copied, innermost first. from, to: words between neighbours along an axis.
struct CopyLoop : Loop {
    Six sizes, from, to;
    int64_t first, start, filled; // words of the result that get `fill` before
    uint32_t fill;
    int64_t pieces;

    void run(const Operands& given, size_t piece) const override
    {
        const uint32_t* x = given.get<uint32_t>(0) + first;
        uint32_t* out = given.get<uint32_t>(1);
        if (filled)
            std::fill_n(out, filled, fill);
        out += start;
        int64_t lines = 1;
        for (int64_t axis = 1; axis < AXES; ++axis)
            lines *= sizes[axis];
        const int64_t own = piece, end = lines * (own + 1) / pieces;
        for (int64_t line = lines * own / pieces; line < end; ++line) {
            int64_t left = line, at = 0, place = 0;
            for (int64_t axis = 1; axis < AXES; ++axis) {
                const int64_t number = left % sizes[axis];
                left /= sizes[axis];
                at += number * from[axis];
                place += number * to[axis];
            }
            if (from[0] == 1 && to[0] == 1)
                std::memcpy(out + place, x + at, 4 * sizes[0]);
            else
                for (int64_t column = 0; column < sizes[0]; ++column)
                    out[place + column * to[0]] = x[at + column * from[0]];
        }
    }

    void reach(Extents& ends) const override
    {
        const auto along = [&](size_t slot, const Six& steps, int64_t at) {
            ends.add(slot, 4, {{sizes[0], steps[0]}, {sizes[1], steps[1]}, {sizes[2], steps[2]},
                               {sizes[3], steps[3]}, {sizes[4], steps[4]}, {sizes[5], steps[5]}}, at);
        };
        along(0, from, first);
        along(1, to, start);
        ends.all(1, 4, {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]}); // each once
        ends.all(1, 4, {filled});
    }
};

struct ConcatLoop : Loop {
    int64_t lines;
    std::vector<int64_t> widths; // words of a line of each operand

    void run(const Operands& given, size_t) const override
    {
        uint32_t* out = given.get<uint32_t>(widths.size());
        for (int64_t line = 0; line < lines; ++line)
            for (size_t operand = 0; operand < widths.size(); ++operand) {
                const int64_t width = widths[operand];
                std::memcpy(out, given.get<uint32_t>(operand) + line * width, 4 * width);
                out += width;
            }
    }

    void reach(Extents& to) const override
    {
        int64_t all = 0;
        for (size_t operand = 0; operand < widths.size(); ++operand) {
            to.all(operand, 4, {lines, widths[operand]});
            require(widths[operand] < int64_t{1} << 48, "expected lines of values");
            all += widths[operand];
        }
        to.all(widths.size(), 4, {lines, all});
    }
};

struct GatherLoop : Loop {
    int64_t outer, size, inner, picks;
    bool is_long;

    int64_t index(const Operands& given, int64_t number) const
    {
        const int64_t at = is_long ? given.get<int64_t>(1)[number] : given.get<int32_t>(1)[number];
        if (at < -size || at >= size)
            throw std::out_of_range("[gather] expected indices in " + std::to_string(-size) + ".."
                                    + std::to_string(size - 1) + ", got " + std::to_string(at));
        return at < 0 ? at + size : at;
    }

    void run(const Operands& given, size_t) const override
    {
        std::vector<int64_t> places(picks);
        for (int64_t pick = 0; pick < picks; ++pick)
            places[pick] = index(given, pick);
        const uint32_t* table = given.get<uint32_t>(0);
        uint32_t* out = given.get<uint32_t>(2);
        for (int64_t line = 0; line < outer; ++line, table += size * inner)
            for (const int64_t place : places) {
                if (inner == 1)
                    *out = table[place];
                else
                    std::memcpy(out, table + place * inner, 4 * inner);
                out += inner;
            }
    }

    void reach(Extents& to) const override
    {
        to.all(0, 4, {outer, size, inner});
        to.all(1, is_long ? 8 : 4, {picks});
        to.all(2, 4, {outer, picks, inner});
    }
};

enum Kind { SUM, MEAN, LARGEST, LEAST };

// (count, inner) -> (inner)
using Extreme = void (*)(const float*, int64_t, int64_t, float*);

template <Kind which>
INLINED float better(float value, float kept) // NaN wins, and stays
{
    return (which == LARGEST ? value > kept : value < kept) || value != value ? value : kept;
}

// Values meet side by side; which of them wins does not depend on the order.
template <Kind which>
INLINED void extreme_body(const float* x, int64_t count, int64_t inner, float* out)
{
    constexpr int64_t lanes = 32;
    if (inner > 1) {
        std::copy_n(x, inner, out);
        for (int64_t row = 1; row < count; ++row) {
            x += inner;
#pragma GCC ivdep
            for (int64_t column = 0; column < inner; ++column)
                out[column] = better<which>(x[column], out[column]);
        }
        return;
    }
    float kept[lanes], found = x[0];
    std::fill_n(kept, lanes, found);
    int64_t at = 0;
    for (; at + lanes <= count; at += lanes)
        for (int64_t lane = 0; lane < lanes; ++lane)
            kept[lane] = better<which>(x[at + lane], kept[lane]);
    for (; at < count; ++at)
        found = better<which>(x[at], found);
    for (const float each : kept)
        found = better<which>(each, found);
    *out = found;
}

template <Kind which>
void extreme(const float* x, int64_t count, int64_t inner, float* out)
{
    extreme_body<which>(x, count, inner, out);
}

#ifdef WIDE
template <Kind which>
WIDE void extreme_wide(const float* x, int64_t count, int64_t inner, float* out)
{
    extreme_body<which>(x, count, inner, out);
}
#else
template <Kind which>
constexpr Extreme extreme_wide = extreme<which>;
#endif

template <Kind which>
Extreme extreme_of(bool wide)
{
    return wide && has_wide() ? extreme_wide<which> : extreme<which>;
}

// x: (outer, count, inner) -> (outer, inner). Sums are of float64, as numpy's.
struct ReduceLoop : Loop {
    int64_t kind, outer, count, inner, pieces;
    Extreme extreme; // of the largest and the least values

    void run(const Operands& given, size_t piece) const override
    {
        const int64_t own = piece, end = outer * (own + 1) / pieces;
        for (int64_t line = outer * own / pieces; line < end; ++line) {
            const float* x = given.get<float>(0) + line * count * inner;
            float* out = given.get<float>(1) + line * inner;
            if (kind == LARGEST || kind == LEAST)
                extreme(x, count, inner, out);
            else if (inner == 1)
                *out = static_cast<float>(total(x) / divisor());
            else
                columns(x, out);
        }
    }

    void reach(Extents& to) const override
    {
        to.all(0, 4, {outer, count, inner});
        to.all(1, 4, {outer, inner});
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

// numbers: sizes, from, to, first, start, filled, fill.
std::unique_ptr<Loop> copy_loop(const Told& told)
{
    require(told.numbers.size() == 3 * AXES + 4 && told.slots == 2,
            "expected as many numbers and slots as the loop has");
    auto made = std::make_unique<CopyLoop>();
    made->sizes = six(told, 0);
    made->from = six(told, AXES);
    made->to = six(told, 2 * AXES);
    const auto rest = told.numbers.begin() + 3 * AXES;
    made->first = rest[0];
    made->start = rest[1];
    made->filled = rest[2];
    made->fill = static_cast<uint32_t>(rest[3]);
    made->pieces = told.pieces;
    require(!made->filled || told.pieces == 1, "expected one piece of what is filled");
    return made;
}

// numbers: lines, and for each operand the words of a line.
std::unique_ptr<Loop> concat_loop(const Told& told)
{
    require(told.slots > 1 && told.numbers.size() == told.slots,
            "expected a number for each operand");
    auto made = std::make_unique<ConcatLoop>();
    made->lines = told.numbers.at(0);
    made->widths.assign(told.numbers.begin() + 1, told.numbers.end());
    return made;
}

// numbers: lines of the table, its size along the axis, words of an element, picks, whether they
// are int64.
std::unique_ptr<Loop> gather_loop(const Told& told)
{
    require(told.numbers.size() == 5 && told.slots == 3,
            "expected as many numbers and slots as the loop has");
    auto made = std::make_unique<GatherLoop>();
    made->outer = told.numbers[0];
    made->size = told.numbers[1];
    made->inner = told.numbers[2];
    made->picks = told.numbers[3];
    made->is_long = told.numbers[4] != 0;
    return made;
}

// numbers: which (0 sum, 1 mean, 2 largest, 3 least), outer, count, inner.
std::unique_ptr<Loop> reduce_loop(const Told& told)
{
    require(told.numbers.size() == 4 && told.slots == 2 && told.numbers[2] > 0
                && told.numbers[3] > 0 && told.numbers[0] >= SUM && told.numbers[0] <= LEAST,
            "expected as many numbers and slots as the loop has");
    auto made = std::make_unique<ReduceLoop>();
    made->kind = told.numbers[0];
    made->outer = told.numbers[1];
    made->count = told.numbers[2];
    made->inner = told.numbers[3];
    made->pieces = told.pieces;
    made->extreme = made->kind == LARGEST ? extreme_of<LARGEST>(told.wide)
                                          : extreme_of<LEAST>(told.wide);
    return made;
}
