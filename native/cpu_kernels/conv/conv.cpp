// Loops over windows of float32, of one to three spatial axes, and those as steps of programs; bindings.cpp
// has what Python calls.
//
// Written in the vectors that GCC and Clang have for all processors; GCC compiles them three times for
// x86.
// Without such a compiler there are none, and numpy does it. Examples: tests/ops/native/test_conv_loops.py.
#include "cpu_kernels/conv/conv.hpp"

#ifdef HAS_VECTORS
namespace {

namespace plain {
constexpr size_t LANES = 4, ROWS = 4, COLUMNS = 2, FEWER = 0;
#include "cpu_kernels/conv/conv_simd.hpp"
} // namespace plain

#ifdef COMPILED_TWICE
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define LARGER _mm256_max_ps
#define SMALLER _mm256_min_ps
namespace wider {
constexpr size_t LANES = 8, ROWS = 4, COLUMNS = 3, FEWER = 0;
#include "cpu_kernels/conv/conv_simd.hpp"
} // namespace wider
#undef LARGER
#undef SMALLER
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512vl,avx512bw,avx512dq,fma")
#define LARGER(a, b) _mm512_mask_max_ps(a, 0xffff, a, b) // GCC warns of what the plain one leaves open
#define SMALLER(a, b) _mm512_mask_min_ps(a, 0xffff, a, b)
namespace widest {
constexpr size_t LANES = 16, ROWS = 8, COLUMNS = 3, FEWER = 6;
#include "cpu_kernels/conv/conv_simd.hpp"
} // namespace widest
#undef LARGER
#undef SMALLER
#pragma GCC pop_options

bool has_widest()
{
    static const bool has = has_wider() && __builtin_cpu_supports("avx512f")
        && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512dq");
    return has;
}
#else
namespace wider = plain;
namespace widest = plain;
bool has_widest() { return false; }
#endif

} // namespace

void convolve(const Conv& told, int wide)
{
    if (wide > 1 && has_widest())
        widest::convolve(told);
    else
        wide > 0 && has_wider() ? wider::convolve(told) : plain::convolve(told);
}

void combine(const Pool& told, int wide)
{
    if (wide > 1 && has_widest())
        widest::combine(told);
    else
        wide > 0 && has_wider() ? wider::combine(told) : plain::combine(told);
}

namespace {

// -- steps of programs ----------------------------------------------------------------------------

constexpr size_t WINDOW = 6 * AXES; // numbers of a window

// Sizes, kernel, results, stride, dilation and begin of three axes each.
Window told_window(const Told& told, size_t at)
{
    require(told.numbers.size() >= at + WINDOW, "expected a window");
    Window made{};
    const auto three = [&](auto& to) {
        for (auto& each : to)
            each = told.numbers[at++];
    };
    three(made.sizes);
    three(made.kernel);
    three(made.out);
    three(made.stride);
    three(made.dilation);
    three(made.begin);
    return made;
}

// Sizes whose products are numbers: those of more than a slot holds are refused.
void require_sizes(const Window& window, std::initializer_list<size_t> others)
{
    double all = 1;
    for (const size_t size : others)
        all *= std::max(1.0, static_cast<double>(size));
    const auto volume = [](const Sizes& sizes) {
        return static_cast<double>(sizes[0]) * static_cast<double>(sizes[1])
            * static_cast<double>(sizes[2]);
    };
    require(all < 0x1p50 && volume(window.sizes) < 0x1p50 && volume(window.out) < 0x1p50
                && volume(window.kernel) < 0x1p50,
            "expected sizes of what slots hold");
}

// A piece: of one image some channels of results, whole groups where there are several; or of 1 x 1
// windows a span of the places, at least SPAN.
struct ConvLoop : Loop {
    Conv conv{};
    Steps steps;
    size_t images, each, spans; // channels of a piece, spans of a plane
    bool has_bias, wide;
    static constexpr size_t SPAN = 64;

    void run(const Operands& given, size_t number) const override
    {
        const size_t all = conv.groups * conv.results, parts = (all + each - 1) / each;
        const size_t piece = number / spans, span = number % spans, places = conv.window.planes();
        const size_t image = piece / parts, first = piece % parts * each;
        const size_t many = std::min(each, all - first), plane = conv.window.results();
        const size_t x_image = conv.groups * conv.channels * conv.window.planes();
        Conv own = conv;
        own.steps = &steps;
        own.x = given.get<float>(0) + image * x_image;
        if (conv.groups == 1) {
            own.results = many;
        } else {
            own.groups = many / conv.results;
            own.x += first / conv.results * conv.channels * conv.window.planes();
        }
        const size_t start = (image * all + first) * plane;
        own.w = given.get<Anywhere>(1) + first * conv.channels * conv.window.taps();
        own.bias = has_bias ? given.get<float>(2) + first : nullptr;
        own.residual = steps.operands > 1 ? given.get<float>(2 + has_bias) + start : nullptr;
        own.out = given.get<float>(1 + has_bias + steps.operands) + start;
        own.start = places / SPAN * span / spans * SPAN;
        own.count = (span + 1 < spans ? places / SPAN * (span + 1) / spans * SPAN : places)
            - own.start;
        convolve(own, wide ? 2 : 0);
    }

    void reach(Extents& to) const override
    {
        const auto many = [](size_t value) { return static_cast<int64_t>(value); };
        const int64_t all = many(conv.groups * conv.results), number = many(images);
        to.all(0, 4, {number, many(conv.groups), many(conv.channels), many(conv.window.planes())});
        to.all(1, 4, {all, many(conv.channels), many(conv.window.taps())});
        to.all(2, 4, {has_bias ? all : 0});
        if (steps.operands > 1)
            to.all(2 + has_bias, 4, {number, all, many(conv.window.results())});
        to.all(1 + has_bias + steps.operands, 4, {number, all, many(conv.window.results())});
    }
};

// Weights, and what values add to their windows; kept from call to call where they are not large.
thread_local std::vector<float> turned, parts;
constexpr size_t MOST_KEPT = 1 << 22; // floats

// What every value of x adds to its window is a product, whose rows are channels and taps of the
// result; then these are added up. A piece: of one image some channels of results.
struct TransposeLoop : Loop {
    Window window; // of x over the result
    size_t images, channels, results, groups, each;
    bool has_bias, wide;

    void run(const Operands& given, size_t piece) const override
    {
        const size_t all = groups * results, pieces = (all + each - 1) / each;
        const size_t image = piece / pieces, first = piece % pieces * each;
        const size_t end = std::min(first + each, all), taps = window.taps();
        const size_t most = std::max<size_t>(1, BAND / (taps * window.planes()));
        for (size_t channel = first; channel < end;) {
            const size_t group = channel / results;
            const size_t many = std::min({most, end - channel, (group + 1) * results - channel});
            multiply(given, image, group, channel % results, many);
            for (size_t own = 0; own < many; ++own, ++channel) {
                float* out = given.get<float>(2 + has_bias)
                    + (image * all + channel) * window.results();
                const float bias = has_bias ? given.get<float>(2)[channel] : 0.0f;
                std::fill_n(out, window.results(), bias);
                for (size_t tap = 0; tap < taps; ++tap)
                    add(out, parts.data() + (own * taps + tap) * window.planes(), tap);
            }
        }
        if (parts.capacity() > MOST_KEPT)
            std::vector<float>().swap(parts);
    }

    void reach(Extents& to) const override
    {
        const auto many = [](size_t value) { return static_cast<int64_t>(value); };
        const int64_t all = many(groups * results), number = many(images);
        to.all(0, 4, {number, many(groups), many(channels), many(window.planes())});
        to.all(1, 4, {many(channels), all, many(window.taps())});
        to.all(2, 4, {has_bias ? all : 0});
        to.all(2 + has_bias, 4, {number, all, many(window.results())});
    }

    // Rows (channel, tap) of results, columns places of x.
    void multiply(const Operands& given, size_t image, size_t group, size_t first,
                  size_t many) const
    {
        const size_t taps = window.taps(), rows = many * taps, planes = window.planes();
        const Anywhere* w = given.get<Anywhere>(1) + group * channels * results * taps + first * taps;
        turned.resize(std::max(turned.size(), rows * channels));
        parts.resize(std::max(parts.size(), rows * planes));
        for (size_t channel = 0; channel < channels; ++channel)
            for (size_t row = 0; row < rows; ++row)
                turned[row * channels + channel] = w[channel * results * taps + row];
        static const Steps none;
        Conv told{};
        told.window = {{1, 1, planes}, {1, 1, 1}, {1, 1, planes}, {1, 1, 1}, {1, 1, 1}, {0, 0, 0}};
        told.channels = channels;
        told.results = rows;
        told.groups = 1;
        told.x = given.get<float>(0) + (image * groups + group) * channels * planes;
        told.w = reinterpret_cast<const Anywhere*>(turned.data());
        told.out = parts.data();
        told.steps = &none;
        told.count = planes;
        convolve(told, wide ? 2 : 0);
    }

    // Adds what one tap makes of all of x.
    void add(float* out, const float* part, size_t tap) const
    {
        const Sizes at{tap / (window.kernel[1] * window.kernel[2]),
                       tap / window.kernel[2] % window.kernel[1], tap % window.kernel[2]};
        const auto place = [&](size_t axis, size_t of_x) {
            return static_cast<ptrdiff_t>(of_x) * window.stride[axis] - window.begin[axis]
                + static_cast<ptrdiff_t>(at[axis]) * window.dilation[axis];
        };
        const auto inside = [&](size_t axis, size_t of_x) {
            return place(axis, of_x) >= 0 && place(axis, of_x) < static_cast<ptrdiff_t>(window.out[axis]);
        };
        size_t from = 0, end = window.sizes[2];
        while (from < end && !inside(2, from))
            ++from;
        while (end > from && !inside(2, end - 1))
            --end;
        for (size_t depth = 0; depth < window.sizes[0]; ++depth)
            for (size_t row = 0; row < window.sizes[1]; ++row, part += window.sizes[2]) {
                if (!inside(0, depth) || !inside(1, row))
                    continue;
                float* line = out + (place(0, depth) * window.out[1] + place(1, row)) * window.out[2];
                const ptrdiff_t step = window.stride[2], first = place(2, 0);
                for (size_t column = from; column < end; ++column)
                    line[first + static_cast<ptrdiff_t>(column) * step] += part[column];
            }
    }
};

// A piece: some planes.
struct PoolLoop : Loop {
    Pool pool{};
    size_t pieces;
    bool wide;

    void run(const Operands& given, size_t piece) const override
    {
        const size_t first = pool.planes * piece / pieces;
        Pool own = pool;
        own.planes = pool.planes * (piece + 1) / pieces - first;
        own.x = given.get<float>(0) + first * pool.window.planes();
        own.out = given.get<float>(1) + first * pool.window.results();
        if (own.planes)
            combine(own, wide ? 2 : 0);
    }

    void reach(Extents& to) const override
    {
        const auto many = [](size_t value) { return static_cast<int64_t>(value); };
        to.all(0, 4, {many(pool.planes), many(pool.window.planes())});
        to.all(1, 4, {many(pool.planes), many(pool.window.results())});
    }
};

} // namespace

// numbers: images, channels and results of a group, groups, channels of results of a piece, spans
// of a plane, has a bias, window, steps.
std::unique_ptr<Loop> conv_loop(const Told& told)
{
    constexpr size_t own = 7;
    auto made = std::make_unique<ConvLoop>();
    made->conv.window = told_window(told, own);
    made->steps = told_steps(told, own + WINDOW, 0);
    made->images = told.numbers[0];
    made->conv.channels = told.numbers[1];
    made->conv.results = told.numbers[2];
    made->conv.groups = told.numbers[3];
    made->each = told.numbers[4];
    made->spans = told.numbers[5];
    made->has_bias = told.numbers[6] != 0;
    made->wide = told.wide;
    check_window(made->conv.window, made->conv.window.out);
    require_sizes(made->conv.window, {made->images, made->conv.channels, made->conv.results,
                                      made->conv.groups, made->each, made->spans});
    require(made->conv.channels > 0 && (made->steps.operands == 1 || made->steps.operands == 2),
            "expected channels, and a residual at most");
    const size_t all = made->conv.groups * made->conv.results;
    require(made->each > 0 && all > 0 && (made->conv.groups == 1 || made->each % made->conv.results == 0)
                && told.pieces == made->images * ((all + made->each - 1) / made->each) * made->spans
                && told.slots == 2 + made->has_bias + made->steps.operands,
            "expected pieces of whole groups, and a slot for each operand and the result");
    const Window& window = made->conv.window;
    require(made->spans == 1
                || (window.is_pointwise() && made->conv.groups == 1 && made->conv.results > 1
                    && made->each == made->conv.results
                    && window.planes() >= made->spans * ConvLoop::SPAN),
            "expected spans of 64 places at least, of all channels of 1 x 1 windows, two or more");
    return made;
}

// numbers: images, channels and results of a group, groups, channels of results of a piece, has a
// bias, window.
std::unique_ptr<Loop> transpose_loop(const Told& told)
{
    constexpr size_t own = 6;
    auto made = std::make_unique<TransposeLoop>();
    made->window = told_window(told, own);
    made->images = told.numbers[0];
    made->channels = told.numbers[1];
    made->results = told.numbers[2];
    made->groups = told.numbers[3];
    made->each = told.numbers[4];
    made->has_bias = told.numbers[5] != 0;
    made->wide = told.wide;
    check_window(made->window, made->window.sizes);
    require_sizes(made->window, {made->images, made->channels, made->results, made->groups,
                                 made->each});
    const size_t all = made->groups * made->results;
    require(told.numbers.size() == own + WINDOW && made->each > 0 && all > 0 && made->channels > 0
                && told.pieces == made->images * ((all + made->each - 1) / made->each)
                && told.slots == 3 + size_t{made->has_bias},
            "expected pieces of channels, and a slot for each operand and the result");
    return made;
}

// numbers: planes, whether it is a mean, window. reals: of a mean the places that each window
// counts, axis after axis.
std::unique_ptr<Loop> pool_loop(const Told& told)
{
    auto made = std::make_unique<PoolLoop>();
    Pool& pool = made->pool;
    pool.window = told_window(told, 2);
    pool.planes = told.numbers[0];
    pool.kind = told.numbers[1] ? MEAN : LARGEST;
    made->pieces = told.pieces;
    made->wide = told.wide;
    check_window(pool.window, pool.window.out);
    require_sizes(pool.window, {pool.planes});
    const Sizes& out = pool.window.out;
    require(told.slots == 2
                && told.reals.size() == (pool.kind == MEAN ? out[0] + out[1] + out[2] : 0),
            "expected counts of a mean, and two slots");
    auto from = told.reals.begin();
    for (size_t axis = 0; pool.kind == MEAN && axis < AXES; from += out[axis++])
        pool.counts[axis].assign(from, from + out[axis]);
    return made;
}

#else
std::unique_ptr<Loop> conv_loop(const Told&) { throw KeyError("conv"); }
std::unique_ptr<Loop> pool_loop(const Told&) { throw KeyError("pool"); }
std::unique_ptr<Loop> transpose_loop(const Told&) { throw KeyError("conv_transpose"); }
#endif
