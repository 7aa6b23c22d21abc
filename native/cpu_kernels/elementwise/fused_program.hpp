// Elementwise steps on registers, which loops take on what they have just made, or on their
// operands: a chain's, as vksched/ops/lowering/fused_loop.py tells them.
//
//   registers   operands | constants | results of the steps; the last step's is the result
#pragma once

#include "cpu_kernels/operands.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

// By number; CALLED: a loop of one value at a time, of unary.cpp. A register may hold int32
// instead of float32; comparisons make 1 or 0, of which WHERE takes b or c.
enum Function {
    ADD, SUB, MUL, DIV, MAXIMUM, MINIMUM, NEG, ABS, SQUARE, SQRT, RSQRT, RECIPROCAL,
    RELU, CLIP, LEAKY_RELU, HARD_SIGMOID, HARD_SWISH, FLOOR, CEIL, TRUNC, ROUND,
    EQUAL, NOT_EQUAL, LESS, LESS_EQUAL, GREATER, GREATER_EQUAL, WHERE,
    ADD_INT, OF_INT, TO_INT, CALLED
};

// Of registers a, b and c, with parameters.
struct ChainStep {
    Function function;
    size_t a, b, c;
    float p, q;
    ValueLoop loop;

    // Whether it makes a number of one or two.
    bool of_floats() const { return function <= ROUND || function == CALLED; }
};

struct Steps {
    size_t operands = 1;
    std::vector<float> constants;
    std::vector<ChainStep> steps;
};

// What an op's name stands for; throws KeyError where there is no such step.
ChainStep step_named(const std::string& name, bool wide);

// Names of all steps, by number.
const std::vector<std::string>& step_names();

// Steps as numbers tell them from `at` on: operands, constants, steps, and of each its number in
// step_names, a, b and c; in reals from `real` on the constants, and of each step p and q.
Steps told_steps(const Told& told, size_t at, size_t real);

INLINED float within(float x, float low, float high)
{
    x = x < low ? low : x; // of NaN neither holds
    return x > high ? high : x;
}

template <class F>
INLINED void each_value(float* to, size_t count, F of)
{
#pragma GCC ivdep
    for (size_t at = 0; at < count; ++at)
        to[at] = of(at);
}

INLINED int32_t int_of(float word) { return bits_as<int32_t>(word); }

// Without its fraction; what int32 does not hold, and NaN, becomes its least value.
INLINED float truncated(float x)
{
    const bool fits = x >= -0x1p31f && x < 0x1p31f;
    return bits_as<float>(fits ? static_cast<int32_t>(fits ? x : 0.0f) : INT32_MIN);
}

INLINED void take(const ChainStep& step, const float* a, const float* b, const float* c, float* to,
                  size_t count)
{
    const float p = step.p, q = step.q;
    switch (step.function) {
    case ADD: return each_value(to, count, [=](size_t i) { return a[i] + b[i]; });
    case SUB: return each_value(to, count, [=](size_t i) { return a[i] - b[i]; });
    case MUL: return each_value(to, count, [=](size_t i) { return a[i] * b[i]; });
    case DIV: return each_value(to, count, [=](size_t i) { return a[i] / b[i]; });
    case MAXIMUM: // NaN wins
        return each_value(to, count,
                          [=](size_t i) { return a[i] > b[i] || a[i] != a[i] ? a[i] : b[i]; });
    case MINIMUM:
        return each_value(to, count,
                          [=](size_t i) { return a[i] < b[i] || a[i] != a[i] ? a[i] : b[i]; });
    case NEG: return each_value(to, count, [=](size_t i) { return -a[i]; });
    case ABS: return each_value(to, count, [=](size_t i) { return std::fabs(a[i]); });
    case SQUARE: return each_value(to, count, [=](size_t i) { return a[i] * a[i]; });
    case SQRT: return each_value(to, count, [=](size_t i) { return std::sqrt(a[i]); });
    case RSQRT: return each_value(to, count, [=](size_t i) { return 1.0f / std::sqrt(a[i]); });
    case RECIPROCAL: return each_value(to, count, [=](size_t i) { return 1.0f / a[i]; });
    case RELU: return each_value(to, count, [=](size_t i) { return a[i] < 0 ? 0.0f : a[i]; });
    case CLIP: return each_value(to, count, [=](size_t i) { return within(a[i], p, q); });
    case LEAKY_RELU:
        return each_value(to, count, [=](size_t i) { return a[i] < 0 ? a[i] * p : a[i]; });
    case HARD_SIGMOID:
        return each_value(to, count, [=](size_t i) { return within(p * a[i] + q, 0, 1); });
    case HARD_SWISH:
        return each_value(to, count,
                          [=](size_t i) { return a[i] * within((a[i] + 3) / 6, 0, 1); });
    case FLOOR: return each_value(to, count, [=](size_t i) { return std::floor(a[i]); });
    case CEIL: return each_value(to, count, [=](size_t i) { return std::ceil(a[i]); });
    case TRUNC: return each_value(to, count, [=](size_t i) { return std::trunc(a[i]); });
    case ROUND: return each_value(to, count, [=](size_t i) { return std::rint(a[i]); });
    case EQUAL: return each_value(to, count, [=](size_t i) { return a[i] == b[i] ? 1.0f : 0.0f; });
    case NOT_EQUAL:
        return each_value(to, count, [=](size_t i) { return a[i] != b[i] ? 1.0f : 0.0f; });
    case LESS: return each_value(to, count, [=](size_t i) { return a[i] < b[i] ? 1.0f : 0.0f; });
    case LESS_EQUAL:
        return each_value(to, count, [=](size_t i) { return a[i] <= b[i] ? 1.0f : 0.0f; });
    case GREATER: return each_value(to, count, [=](size_t i) { return a[i] > b[i] ? 1.0f : 0.0f; });
    case GREATER_EQUAL:
        return each_value(to, count, [=](size_t i) { return a[i] >= b[i] ? 1.0f : 0.0f; });
    case WHERE: return each_value(to, count, [=](size_t i) { return a[i] != 0 ? b[i] : c[i]; });
    case ADD_INT:
        return each_value(to, count, [=](size_t i) {
            return bits_as<float>(bits_as<uint32_t>(a[i]) + bits_as<uint32_t>(b[i]));
        });
    case OF_INT:
        return each_value(to, count, [=](size_t i) { return static_cast<float>(int_of(a[i])); });
    case TO_INT: return each_value(to, count, [=](size_t i) { return truncated(a[i]); });
    case CALLED: return step.loop(a, to, count);
    }
}
