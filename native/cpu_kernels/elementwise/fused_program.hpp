// Programs of elementwise instructions on registers: those of a fused elementwise op, or the
// epilogue of a convolution. vksched/ops/lowering/fused_loop.py encodes them.
//
//   registers   operands | constants | results of the instructions; the last one is the result
#pragma once

#include "cpu_kernels/operands.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

// CALL: a kernel of unary.cpp. A register holds float32 or int32. Comparisons return 1 or 0, and
// WHERE selects b or c.
enum Opcode {
    ADD, SUB, MUL, DIV, MAXIMUM, MINIMUM, NEG, ABS, SQUARE, SQRT, RSQRT, RECIPROCAL,
    RELU, CLIP, LEAKY_RELU, HARD_SIGMOID, HARD_SWISH, FLOOR, CEIL, TRUNC, ROUND,
    EQUAL, NOT_EQUAL, LESS, LESS_EQUAL, GREATER, GREATER_EQUAL, WHERE,
    ADD_INT32, FROM_INT32, TO_INT32, CALL
};

// An instruction on registers a, b and c, with parameters p and q.
struct Instr {
    Opcode opcode;
    size_t a, b, c;
    float p, q;
    UnaryKernel kernel;

    // Return whether the op maps one or two float32 values to one.
    bool is_float_op() const { return opcode <= ROUND || opcode == CALL; }
};

struct FusedProgram {
    size_t operands = 1;
    std::vector<float> constants;
    std::vector<Instr> instrs;
};

// Return the instruction of an op by its name. Throw KeyError if there is none.
Instr instr_named(const std::string& name, bool wide);

// Names of all instructions; the index is the encoded opcode.
const std::vector<std::string>& instr_names();

// Read a program from the parameters of a loop. int_params from `at` on: operands, constants,
// instructions, and for each its index in instr_names, a, b and c. float_params from `float_at` on:
// the constants, and p and q for each instruction.
FusedProgram read_fused_program(const LoopParams& params, size_t at, size_t float_at);

INLINED float clamp(float x, float low, float high)
{
    x = x < low ? low : x; // both comparisons are false for NaN
    return x > high ? high : x;
}

template <class F>
INLINED void each_value(float* to, size_t count, F of)
{
#pragma GCC ivdep
    for (size_t at = 0; at < count; ++at)
        to[at] = of(at);
}

INLINED int32_t as_int(float bits) { return bit_cast<int32_t>(bits); }

// Truncate to int32. Values out of range and NaN become INT32_MIN.
INLINED float truncated(float x)
{
    const bool fits = x >= -0x1p31f && x < 0x1p31f;
    return bit_cast<float>(fits ? static_cast<int32_t>(fits ? x : 0.0f) : INT32_MIN);
}

INLINED void execute(const Instr& instr, const float* a, const float* b, const float* c, float* to,
                  size_t count)
{
    const float p = instr.p, q = instr.q;
    switch (instr.opcode) {
    case ADD: return each_value(to, count, [=](size_t i) { return a[i] + b[i]; });
    case SUB: return each_value(to, count, [=](size_t i) { return a[i] - b[i]; });
    case MUL: return each_value(to, count, [=](size_t i) { return a[i] * b[i]; });
    case DIV: return each_value(to, count, [=](size_t i) { return a[i] / b[i]; });
    case MAXIMUM: // NaN propagates
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
    case CLIP: return each_value(to, count, [=](size_t i) { return clamp(a[i], p, q); });
    case LEAKY_RELU:
        return each_value(to, count, [=](size_t i) { return a[i] < 0 ? a[i] * p : a[i]; });
    case HARD_SIGMOID:
        return each_value(to, count, [=](size_t i) { return clamp(p * a[i] + q, 0, 1); });
    case HARD_SWISH:
        return each_value(to, count,
                          [=](size_t i) { return a[i] * clamp((a[i] + 3) / 6, 0, 1); });
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
    case ADD_INT32:
        return each_value(to, count, [=](size_t i) {
            return bit_cast<float>(bit_cast<uint32_t>(a[i]) + bit_cast<uint32_t>(b[i]));
        });
    case FROM_INT32:
        return each_value(to, count, [=](size_t i) { return static_cast<float>(as_int(a[i])); });
    case TO_INT32: return each_value(to, count, [=](size_t i) { return truncated(a[i]); });
    case CALL: return instr.kernel(a, to, count);
    }
}
