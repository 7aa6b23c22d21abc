// What loops over windows share: where windows lie in x, and what follows a convolution.
#pragma once

#include "cpu_kernels/elementwise/fused_program.hpp"
#include "cpu_kernels/vectors.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#ifdef HAS_VECTORS
constexpr size_t AXES = 3, MOST_VECTORS = 8;
constexpr size_t BAND = 1 << 16; // floats of x that are read again and again: they stay in a cache
constexpr size_t BLOCK = 1 << 14; // floats of x that meet all weights of 1 x 1 windows in turn
constexpr size_t FEW = 1 << 12;   // floats of x that the first cache holds
constexpr size_t PAGE = 1024;    // floats: channels that lie so far apart push each other out
constexpr size_t CROWD = 256;    // floats: many channels that lie so far apart do

using Sizes = std::array<size_t, AXES>;
using Places = std::array<ptrdiff_t, AXES>;

typedef float Anywhere __attribute__((aligned(1), may_alias)); // as files hold weights

// Windows over (depth, rows, columns); fewer axes have leading ones.
struct Window {
    Sizes sizes, kernel, out;
    Places stride, dilation, begin;

    size_t planes() const { return sizes[0] * sizes[1] * sizes[2]; }
    size_t results() const { return out[0] * out[1] * out[2]; }
    size_t taps() const { return kernel[0] * kernel[1] * kernel[2]; }

    // Whether each result is of one place of x, the same one.
    bool is_pointwise() const
    {
        return taps() == 1 && sizes == out && begin == Places{} && stride == Places{1, 1, 1};
    }
};

// Throws unless a window has places along each axis, and what it reads with padding could be held.
// windows: how many there are along each axis.
inline void check_window(const Window& window, const Sizes& windows)
{
    constexpr size_t far = size_t{1} << 40, most = size_t{1} << 31; // negative ones are beyond
    double padded = 1;
    for (size_t axis = 0; axis < AXES; ++axis) {
        const auto within = [](size_t value, size_t least, size_t end) {
            return least <= value && value < end;
        };
        require(within(window.sizes[axis], 1, far) && within(window.out[axis], 1, far)
                    && within(window.kernel[axis], 1, most) && within(window.stride[axis], 1, most)
                    && within(window.dilation[axis], 1, most) && within(window.begin[axis], 0, most),
                "expected sizes, kernels, strides and dilations above 0, and a begin of 0 or more, "
                "each below 2^31");
        padded *= static_cast<double>(windows[axis] - 1) * static_cast<double>(window.stride[axis])
            + static_cast<double>(window.kernel[axis] - 1) * static_cast<double>(window.dilation[axis])
            + 1;
    }
    require(padded < static_cast<double>(far), "expected windows over less than 2^40 places");
}

// The taps of an axis: those with one phase (place modulo stride) lie side by side once phases are
// parted. phases: those there are. number, shift: of each tap its phase, and how far it lies in it.
struct Taps {
    std::vector<ptrdiff_t> phases;
    std::vector<size_t> number, shift;
    size_t reach = 0;

    Taps(size_t kernel, ptrdiff_t stride, ptrdiff_t dilation)
    {
        for (size_t tap = 0; tap < kernel; ++tap) {
            const ptrdiff_t place = static_cast<ptrdiff_t>(tap) * dilation, phase = place % stride;
            const auto found = std::find(phases.begin(), phases.end(), phase);
            number.push_back(found - phases.begin());
            if (found == phases.end())
                phases.push_back(phase);
            shift.push_back(place / stride);
            reach = std::max(reach, shift.back());
        }
    }
};

// Results that are computed together: rows and columns of one depth.
struct Part {
    size_t depth, row, rows, column, columns;
};

// x as the kernels read it: result (row, column) of a part at row * pitch + column, each tap a
// shift from there. Columns from `columns` on are of no use.
struct Area {
    const float* x;
    size_t channel, pitch, count; // floats from channel to channel; results up to the last one
    std::vector<size_t> shifts;
};

// What follows a sum where that is a residual, bounds, or both: kernels take it in registers.
struct Bounds {
    bool adds = false, bounded = false;
    float low = 0, high = std::numeric_limits<float>::infinity();
};

// Steps as bounds; none where they are something else.
inline std::optional<Bounds> bounds_of(const Steps& told)
{
    Bounds made;
    size_t number = 0, sum = 0; // the step, and the register that it reads
    if (told.operands > 1) {
        const ChainStep& step = told.steps[number++];
        if (step.function != ADD || step.a + step.b != 1)
            return {};
        made.adds = true;
        sum = told.operands + told.constants.size();
    }
    if (number < told.steps.size()) {
        const ChainStep& step = told.steps[number++];
        if ((step.function != RELU && step.function != CLIP) || step.a != sum)
            return {};
        made.bounded = true;
        if (step.function == CLIP) {
            made.low = step.p;
            made.high = step.q;
        }
    }
    if (number < told.steps.size())
        return {};
    return made;
}

// A convolution of one image. residual: null, or laid out as the result. start, count: of 1 x 1
// windows the places that are wanted, else all.
struct Conv {
    Window window;
    size_t channels, results, groups; // channels and results of one group
    const float *x, *bias, *residual;
    const Anywhere* w;
    float* out;
    const Steps* steps;
    size_t start, count;
};

enum Pooling { LARGEST, MEAN };

// counts: for each axis the places that each window of a mean counts.
struct Pool {
    Window window;
    Pooling kind;
    size_t planes;
    std::array<std::vector<float>, AXES> counts;
    const float* x;
    float* out;
};

// Memory of a thread, kept from call to call; from a line of a cache on.
inline float* scratch(size_t floats)
{
    constexpr size_t line = 16;
    thread_local std::vector<float> kept;
    if (kept.size() < floats + line)
        kept.resize(floats + line);
    const size_t past = reinterpret_cast<uintptr_t>(kept.data()) / sizeof(float) % line;
    return kept.data() + (line - past) % line;
}

// wide: 0 for vectors that all processors have, 1 for those of AVX2, 2 for those of AVX-512.
void convolve(const Conv& told, int wide);
void combine(const Pool& told, int wide);
#endif
