// Loops that are one function of their parameters, and helpers that several of them share.
#pragma once

#include "cpu_kernels/operands.hpp"
#include "cpu_kernels/vectors.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

// callee: the kernel that the loop calls.
template <class Callee>
struct ParamLoop : Loop {
    using Kernel = void (*)(const ParamLoop&, const Operands&, size_t);
    using AddExtents = void (*)(const ParamLoop&, Extents&);

    ParamLoop(const LoopParams& params, Kernel kernel, AddExtents add_extents_of, Callee callee)
      : kernel(kernel), add_extents_of(add_extents_of), int_params(params.int_params),
        float_params(params.float_params), last(params.slots - 1), pieces(params.pieces),
        callee(callee)
    {
    }
    void run(const Operands& operands, size_t piece) const override
    {
        kernel(*this, operands, piece);
    }
    void add_extents(Extents& extents) const override { add_extents_of(*this, extents); }
    float* result(const Operands& operands) const { return operands.get<float>(last); }
    // Return the first row of a piece.
    int64_t first_row(int64_t rows, size_t piece) const { return rows * int64_t(piece) / pieces; }

    Kernel kernel;
    AddExtents add_extents_of;
    std::vector<int64_t> int_params;
    std::vector<float> float_params;
    size_t last;
    int64_t pieces;
    Callee callee;
};

struct NoCallee {};
using PlainLoop = ParamLoop<NoCallee>;

// The expected numbers of parameters. operands: minimum number of operands.
struct ParamCounts {
    size_t operands, int_params, float_params;
};

template <class Callee = NoCallee>
std::unique_ptr<Loop> param_loop(const LoopParams& params, const ParamCounts& counts,
                                 typename ParamLoop<Callee>::Kernel kernel,
                                 typename ParamLoop<Callee>::AddExtents add_extents_of,
                                 Callee callee = {})
{
    require(params.slots > counts.operands && params.int_params.size() == counts.int_params
                && params.float_params.size() == counts.float_params,
            "expected as many slots, int_params and float_params as the loop has");
    return std::make_unique<ParamLoop<Callee>>(params, kernel, add_extents_of, callee);
}

INLINED float horizontal_sum(float (&sums)[16])
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
    return horizontal_sum(sums);
}

inline int64_t read_index(const char* data, size_t index, bool is_int64)
{
    int32_t narrow;
    int64_t value;
    if (is_int64)
        std::memcpy(&value, data + 8 * index, sizeof value);
    else
        std::memcpy(&narrow, data + 4 * index, sizeof narrow), value = narrow;
    constexpr int64_t limit = int64_t{1} << 40; // sums of indices do not overflow
    return std::clamp(value, -limit, limit);
}
