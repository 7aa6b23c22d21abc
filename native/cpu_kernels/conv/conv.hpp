// Geometry of windows, epilogues, and the parameters of convolution and pooling kernels.
#pragma once

#include "cpu_kernels/elementwise/fused_program.hpp"
#include "cpu_kernels/vectors.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#ifdef HAS_VECTOR_EXTENSIONS
constexpr size_t AXES = 3, MAX_VECTORS = 8;
constexpr size_t L2_FLOATS = 1 << 16; // block of x that stays in the L2 cache
constexpr size_t POINTWISE_FLOATS = 1 << 14; // block of x of a pointwise convolution
constexpr size_t L1_FLOATS = 1 << 12;   // block of x that stays in the L1 cache
constexpr size_t ALIAS_STRIDE = 1024; // channels at such a stride evict each other from the cache
constexpr size_t CROWDED_STRIDE = 256; // so do many channels at this one

using Sizes = std::array<size_t, AXES>;
using Offsets = std::array<ptrdiff_t, AXES>;

typedef float UnalignedFloat
    __attribute__((aligned(1), may_alias)); // weights may be mapped from a file

// Windows over (depth, rows, columns). With fewer spatial axes the leading ones have size 1.
struct Window {
    Sizes sizes, kernel, out;
    Offsets stride, dilation, pad_begin;

    size_t input_size() const { return sizes[0] * sizes[1] * sizes[2]; }
    size_t output_size() const { return out[0] * out[1] * out[2]; }
    size_t taps() const { return kernel[0] * kernel[1] * kernel[2]; }

    // Return whether each result reads one position of x, its own one.
    bool is_pointwise() const
    {
        return taps() == 1 && sizes == out && pad_begin == Offsets{} && stride == Offsets{1, 1, 1};
    }
};

// Throw unless all sizes are positive and the padded input is addressable. windows: number of
// windows along each axis.
inline void check_window(const Window& window, const Sizes& windows)
{
    constexpr size_t limit = size_t{1} << 40,
                     max_step = size_t{1} << 31; // negative values exceed them
    double padded = 1;
    for (size_t axis = 0; axis < AXES; ++axis) {
        const auto clamp_vector = [](size_t value, size_t min_value, size_t end) {
            return min_value <= value && value < end;
        };
        require(clamp_vector(window.sizes[axis], 1, limit)
                    && clamp_vector(window.out[axis], 1, limit)
                    && clamp_vector(window.kernel[axis], 1, max_step)
                    && clamp_vector(window.stride[axis], 1, max_step)
                    && clamp_vector(window.dilation[axis], 1, max_step)
                    && clamp_vector(window.pad_begin[axis], 0, max_step),
                "expected sizes, kernels, strides and dilations above 0, and a begin of 0 or more, "
                "each below 2^31");
        padded *= static_cast<double>(windows[axis] - 1) * static_cast<double>(window.stride[axis])
                  + static_cast<double>(window.kernel[axis] - 1)
                        * static_cast<double>(window.dilation[axis])
                  + 1;
    }
    require(padded < static_cast<double>(limit), "expected windows over less than 2^40 places");
}

// The taps of an axis. Taps with the same phase (offset modulo stride) are adjacent once the phases
// are separated. phases: the phases that occur. phase_index, shift: phase of each tap, and its
// position within the phase.
struct Taps {
    std::vector<ptrdiff_t> phases;
    std::vector<size_t> phase_index, shift;
    size_t reach = 0;

    Taps(size_t kernel, ptrdiff_t stride, ptrdiff_t dilation)
    {
        for (size_t tap = 0; tap < kernel; ++tap) {
            const ptrdiff_t place = static_cast<ptrdiff_t>(tap) * dilation, phase = place % stride;
            const auto existing = std::find(phases.begin(), phases.end(), phase);
            phase_index.push_back(existing - phases.begin());
            if (existing == phases.end())
                phases.push_back(phase);
            shift.push_back(place / stride);
            reach = std::max(reach, shift.back());
        }
    }
};

// A block of results that are computed together: rows and columns at one depth.
struct OutputBlock {
    size_t depth, row, rows, column, columns;
};

// x as the microkernels read it: result (row, column) of a block reads at row * pitch + column, and
// each tap adds a shift. Results in columns beyond the block are discarded.
struct PackedInput {
    const float* x;
    size_t channel, pitch, count; // stride of channels; results, with discarded ones
    std::vector<size_t> shifts;
};

// An epilogue that adds a residual, clamps, or both: microkernels apply it in registers.
struct ClampEpilogue {
    bool adds_residual = false, clamps = false;
    float low = 0, high = std::numeric_limits<float>::infinity();
};

// Return a program as ClampEpilogue, or nothing if it does something else.
inline std::optional<ClampEpilogue> clamp_epilogue_of(const FusedProgram& program)
{
    ClampEpilogue clamp;
    size_t instr_index = 0, sum_register = 0; // the register that it reads
    if (program.operands > 1) {
        const Instr& instr = program.instrs[instr_index++];
        if (instr.opcode != ADD || instr.a + instr.b != 1)
            return {};
        clamp.adds_residual = true;
        sum_register = program.operands + program.constants.size();
    }
    if (instr_index < program.instrs.size()) {
        const Instr& instr = program.instrs[instr_index++];
        if ((instr.opcode != RELU && instr.opcode != CLIP) || instr.a != sum_register)
            return {};
        clamp.clamps = true;
        if (instr.opcode == CLIP) {
            clamp.low = instr.p;
            clamp.high = instr.q;
        }
    }
    if (instr_index < program.instrs.size())
        return {};
    return clamp;
}

// A convolution of one image. residual: null, or with the layout of the result. start, count:
// positions to compute (pointwise convolution only).
struct Conv {
    Window window;
    size_t channels, out_channels, groups; // of one group
    const float *x, *bias, *residual;
    const UnalignedFloat* w;
    float* out;
    const FusedProgram* program;
    size_t start, count;
};

enum PoolKind { MAX, MEAN };

// counts: of a mean the divisors for each axis.
struct Pool {
    Window window;
    PoolKind kind;
    size_t planes;
    std::array<std::vector<float>, AXES> counts;
    const float* x;
    float* out;
};

// Return scratch memory of this thread, aligned to a cache line and reused from call to call.
inline float* scratch(size_t floats)
{
    constexpr size_t line = 16;
    thread_local std::vector<float> buffer;
    if (buffer.size() < floats + line)
        buffer.resize(floats + line);
    const size_t past = reinterpret_cast<uintptr_t>(buffer.data()) / sizeof(float) % line;
    return buffer.data() + (line - past) % line;
}

// wide: 0 for the baseline instruction set, 1 for AVX2, 2 for AVX-512.
void convolve(const Conv& params, int wide);
void pool_planes(const Pool& params, int wide);
#endif
