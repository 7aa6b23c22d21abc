// Loops of programs that are one function of what they were told, and what several of these share.
#pragma once

#include "cpu_kernels/operands.hpp"
#include "cpu_kernels/vectors.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

// called: the loop of others that it calls.
template <class Called>
struct ToldLoop : Loop {
    using Way = void (*)(const ToldLoop&, const Operands&, size_t);
    using Reach = void (*)(const ToldLoop&, Extents&);

    ToldLoop(const Told& told, Way way, Reach reaches, Called called)
      : way(way), reaches(reaches), numbers(told.numbers), reals(told.reals), last(told.slots - 1),
        pieces(told.pieces), called(called)
    {
    }
    void run(const Operands& given, size_t piece) const override { way(*this, given, piece); }
    void reach(Extents& to) const override { reaches(*this, to); }
    float* result(const Operands& given) const { return given.get<float>(last); }
    // The first row of a piece, of so many rows.
    int64_t first_row(int64_t rows, size_t piece) const { return rows * int64_t(piece) / pieces; }

    Way way;
    Reach reaches;
    std::vector<int64_t> numbers;
    std::vector<float> reals;
    size_t last;
    int64_t pieces;
    Called called;
};

struct Nothing {};
using PlainLoop = ToldLoop<Nothing>;

// What a loop is told, to be checked. operands: slots but for the result's, at least.
struct Counts {
    size_t operands, numbers, reals;
};

template <class Called = Nothing>
std::unique_ptr<Loop> told_loop(const Told& told, const Counts& counts,
                                typename ToldLoop<Called>::Way way,
                                typename ToldLoop<Called>::Reach reaches, Called called = {})
{
    require(told.slots > counts.operands && told.numbers.size() == counts.numbers
                && told.reals.size() == counts.reals,
            "expected as many slots, numbers and reals as the loop has");
    return std::make_unique<ToldLoop<Called>>(told, way, reaches, called);
}

INLINED float total_of(float (&sums)[16])
{
    for (int64_t half = 8; half > 0; half /= 2)
        for (int64_t lane = 0; lane < half; ++lane)
            sums[lane] += sums[lane + half];
    return sums[0];
}

INLINED float dot(const float* a, const float* b, int64_t count)
{
    constexpr int64_t lanes = 16;
    float sums[lanes] = {};
    int64_t at = 0;
    for (; at + lanes <= count; at += lanes)
        for (int64_t lane = 0; lane < lanes; ++lane)
            sums[lane] += a[at + lane] * b[at + lane];
    for (; at < count; ++at)
        sums[0] += a[at] * b[at];
    return total_of(sums);
}

inline int64_t whole_number(const char* from, size_t number, bool is_long)
{
    int32_t made;
    int64_t more;
    if (is_long)
        std::memcpy(&more, from + 8 * number, sizeof more);
    else
        std::memcpy(&made, from + 4 * number, sizeof made), more = made;
    constexpr int64_t far = int64_t{1} << 40; // so that sums of it are numbers
    return std::clamp(more, -far, far);
}
