// Loops over codes of 8 bits, as quantised networks have them; sums are exact, modulo 2**32.
//
//   matmul_integer(a, words, a_zero, b_zero, out, signed)      out = (a - a_zero) @ (b - b_zero)
//   conv_integer(x, words, x_zero, w_zero, out, signed, ...)   the same of windows of an image
//   quantize(x, scale, zero, out, low, high, inner)            clip(round(x / scale) + zero)
//   requantize(x, bias, scale, out, zero, low, high, inner)    the same of (x + bias) * scale
//
// Words of weights are laid out by vksched/ops/products/codes.py: tiles of 16 columns, in each a row
// of their sums, then four codes of a column in a word. On x86 compiled for several kinds of
// processors (integer_ways.hpp). Examples: tests/ops/test_integer_loops.py.
#include "loops.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SEVERAL_WAYS
#include <immintrin.h>
#endif

namespace {

constexpr size_t LANES = 16;
constexpr uint32_t SIGN = 0x80u;

// Rows of bytes that meet columns. row_step, word_step: words from row to row, and along the sum.
struct Rows {
    const uint32_t* words;
    size_t row_step, word_step;
};

// rows, tiles: the largest tile, in rows and in sixteens of columns.
struct Way {
    using Multiply = void (*)(const Rows&, size_t, const uint32_t*, size_t, size_t, size_t,
                              int32_t*);
    size_t rows, tiles;
    Multiply signed_columns, signed_rows;
    void (*quantize)(const float*, float, int32_t, int32_t, int32_t, int32_t*, size_t);
    void (*requantize)(const int32_t*, int32_t, float, int32_t, int32_t, int32_t, int32_t*, size_t);
};

constexpr size_t LARGEST_TILE = 8 * 2 * LANES;

namespace plain {
#include "integer_ways.hpp"
}

#ifdef SEVERAL_WAYS
#pragma GCC push_options
#pragma GCC target("avx2")
#define WAY_MADD
namespace madd {
#include "integer_ways.hpp"
}
#undef WAY_MADD
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vnni")
#define WAY_DOT
namespace dot {
#include "integer_ways.hpp"
}
#undef WAY_DOT
#pragma GCC pop_options
#endif

// What this processor runs, the fastest first.
const std::vector<std::pair<std::string, Way>>& ways()
{
    static const auto found = [] {
        std::vector<std::pair<std::string, Way>> made;
#ifdef SEVERAL_WAYS
        if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw")
            && __builtin_cpu_supports("avx512vl"))
            made.emplace_back("dot", dot::way);
        if (__builtin_cpu_supports("avx2"))
            made.emplace_back("madd", madd::way);
#endif
        made.emplace_back("plain", plain::way);
        return made;
    }();
    return found;
}

const Way& way_of(const std::string& name)
{
    for (const auto& [own, way] : ways())
        if (name.empty() || name == own)
            return way;
    throw py::key_error(name);
}

// -- operands ------------------------------------------------------------------------------------

// Values of 32 bits without gaps.
template <class T>
struct Line {
    Line(const py::buffer& given, bool writable = false) : info(given.request(writable))
    {
        py::ssize_t expected = 4;
        bool dense = info.itemsize == 4;
        for (py::ssize_t axis = info.ndim; axis-- > 0; expected *= info.shape[axis])
            dense = dense && (info.shape[axis] == 1 || info.strides[axis] == expected);
        require(dense && reinterpret_cast<uintptr_t>(info.ptr) % 4 == 0,
                "expected values of 32 bits without gaps, aligned");
    }
    size_t size() const { return info.size; }
    T* data() const { return static_cast<T*>(info.ptr); }
    py::buffer_info info;
};

// Tiles of weights. sums: a row before the words of each.
struct Weights {
    Weights(const py::buffer& given, const py::buffer& zeros, size_t depth, size_t columns)
      : own(given), zero(zeros), words(depth)
    {
        require(own.size() == tiles(columns) * step() && own.info.ndim == 3
                    && static_cast<size_t>(own.info.shape[1]) == depth + 1,
                "expected words (tiles, 1 + words of a column, 16)");
        require(zero.size() == 1 || zero.size() == columns,
                "expected one zero point or one for each column");
        for (size_t at = 0; at < zero.size(); ++at)
            shifted = shifted || zero.data()[at] != 0;
    }
    static size_t tiles(size_t columns) { return (columns + LANES - 1) / LANES; }
    size_t step() const { return (words + 1) * LANES; }
    const uint32_t* tile(size_t number) const { return own.data() + number * step() + LANES; }
    uint32_t sum(size_t column) const
    {
        return own.data()[column / LANES * step() + column % LANES];
    }
    uint32_t zero_of(size_t column) const
    {
        return static_cast<uint32_t>(zero.data()[zero.size() > 1 ? column : 0]);
    }
    Line<const uint32_t> own;
    Line<const int32_t> zero;
    size_t words;
    bool shifted = false;
};

// Codes as bytes without a sign: those with one are 128 larger.
INLINED uint32_t byte_of(int32_t code, uint32_t flip)
{
    return (static_cast<uint32_t>(code) & 0xffu) ^ flip;
}

uint32_t word_of(const int32_t* codes, size_t count, uint32_t flip)
{
    uint32_t word = 0;
    for (size_t at = 0; at < count; ++at)
        word |= byte_of(codes[at], flip) << 8 * at;
    return word;
}

uint32_t sum_of(uint32_t word)
{
    return (word & 0xffu) + (word >> 8 & 0xffu) + (word >> 16 & 0xffu) + (word >> 24);
}

// -- products of matrices ------------------------------------------------------------------------

struct Packed {
    std::vector<uint32_t> words, sums;
};

// Rows of codes as words, and what is to be taken off for each row where columns have zero points.
Packed pack_rows(const Matrix<const int32_t>& a, size_t words, uint32_t flip, uint32_t zero, bool sums)
{
    Packed made;
    made.words.resize(a.rows() * words);
    made.sums.assign(sums ? a.rows() : 0, 0);
    const size_t columns = a.columns(), whole = columns / 4;
    for (size_t row = 0; row < a.rows(); ++row) {
        const int32_t* from = a.data() + row * a.row();
        uint32_t* to = made.words.data() + row * words;
        for (size_t at = 0; at < whole; ++at)
            to[at] = byte_of(from[4 * at], flip) | byte_of(from[4 * at + 1], flip) << 8
                | byte_of(from[4 * at + 2], flip) << 16 | byte_of(from[4 * at + 3], flip) << 24;
        if (whole < words)
            to[whole] = word_of(from + 4 * whole, columns - 4 * whole, flip);
        if (sums) {
            uint32_t sum = 0;
            for (size_t at = 0; at < words; ++at)
                sum += sum_of(to[at]);
            made.sums[row] = sum - static_cast<uint32_t>(columns) * zero;
        }
    }
    return made;
}

void matmul_integer(const py::buffer& a, const py::buffer& words, int32_t a_zero,
                    const py::buffer& b_zero, const py::buffer& out, bool is_signed,
                    const std::string& name)
{
    const Matrix<const int32_t> from(a);
    const Matrix<int32_t> to(out);
    require(to.rows() == from.rows(), "expected as many rows in the result as in a");
    const size_t depth = (from.columns() + 3) / 4, columns = to.columns();
    const Weights b(words, b_zero, depth, columns);
    const Way& way = way_of(name);
    py::gil_scoped_release unlocked;
    const uint32_t flip = is_signed ? SIGN : 0;
    const uint32_t zero = static_cast<uint32_t>(a_zero) + flip;
    const Packed rows = pack_rows(from, depth, flip, zero, b.shifted);
    int32_t tile[LARGEST_TILE];
    for (size_t first = 0; first < Weights::tiles(columns); first += way.tiles) {
        const size_t tiles = std::min(way.tiles, Weights::tiles(columns) - first);
        const size_t left = first * LANES, width = std::min(tiles * LANES, columns - left);
        for (size_t row = 0; row < from.rows(); row += way.rows) {
            const size_t count = std::min(way.rows, from.rows() - row);
            way.signed_columns({rows.words.data() + row * depth, depth, 1}, count, b.tile(first),
                               b.step(), tiles, depth, tile);
            for (size_t r = 0; r < count; ++r) {
                int32_t* target = to.data() + (row + r) * to.row() + left;
                const int32_t* made = tile + r * tiles * LANES;
                for (size_t c = 0; c < width; ++c)
                    target[c] = static_cast<int32_t>(static_cast<uint32_t>(made[c])
                                                     - zero * b.sum(left + c));
                for (size_t c = 0; b.shifted && c < width; ++c)
                    target[c] = static_cast<int32_t>(static_cast<uint32_t>(target[c])
                                                     - rows.sums[row + r] * b.zero_of(left + c));
            }
        }
    }
}

// -- convolutions --------------------------------------------------------------------------------

using Three = std::array<size_t, 3>;
using Signed = std::array<py::ssize_t, 3>;

struct Window {
    Three sizes, kernel, stride, dilation, counts;
    Signed begin;
};

size_t product_of(const Three& sizes) { return sizes[0] * sizes[1] * sizes[2]; }

// Four channels in a word, place by place; missing ones are 0.
std::vector<uint32_t> pack_image(const int32_t* x, size_t channels, size_t places, uint32_t flip)
{
    std::vector<uint32_t> made((channels + 3) / 4 * places);
    for (size_t channel = 0; channel < channels; ++channel) {
        const int32_t* from = x + channel * places;
        uint32_t* to = made.data() + channel / 4 * places;
        const uint32_t up = 8 * (channel % 4);
        for (size_t at = 0; at < places; ++at)
            to[at] |= byte_of(from[at], flip) << up;
    }
    return made;
}

// Neighbours of a panel that lie side by side in the image; outside of it `from` is -1.
struct Run {
    size_t to, count;
    py::ssize_t from;
};

// Where the windows at some places of the result read one tap.
void find_runs(const Window& w, size_t first, size_t count, const Three& tap, std::vector<Run>& runs)
{
    runs.clear();
    const size_t inner = w.counts[2], plane = w.counts[1] * inner;
    Three at{first / plane, first / inner % w.counts[1], first % inner};
    for (size_t to = 0; to < count; ++to) {
        py::ssize_t from = 0;
        for (size_t axis = 0; axis < 3 && from >= 0; ++axis) {
            const py::ssize_t place = static_cast<py::ssize_t>(at[axis] * w.stride[axis]
                                                               + tap[axis] * w.dilation[axis])
                - w.begin[axis];
            const bool inside = place >= 0 && place < static_cast<py::ssize_t>(w.sizes[axis]);
            from = inside ? from * static_cast<py::ssize_t>(w.sizes[axis]) + place : -1;
        }
        Run* last = runs.empty() ? nullptr : &runs.back();
        const py::ssize_t next = !last ? -2 : last->from < 0 ? -1
                                           : last->from + static_cast<py::ssize_t>(last->count);
        if (next == from)
            ++last->count;
        else
            runs.push_back({to, 1, from});
        for (size_t axis = 3; axis-- > 0 && ++at[axis] == w.counts[axis];)
            at[axis] = 0;
    }
}

// What the windows at some places read, as columns of tiles. pads: words outside of the image.
void fill_panel(const Window& w, const std::vector<uint32_t>& image,
                const std::vector<uint32_t>& pads, size_t first, size_t count, size_t step,
                std::vector<Run>& runs, uint32_t* panel)
{
    const size_t places = product_of(w.sizes), groups = pads.size();
    size_t word = 0;
    for (size_t a = 0; a < w.kernel[0]; ++a)
        for (size_t b = 0; b < w.kernel[1]; ++b)
            for (size_t c = 0; c < w.kernel[2]; ++c) {
                find_runs(w, first, count, {a, b, c}, runs);
                for (size_t group = 0; group < groups; ++group, ++word) {
                    const uint32_t* plane = image.data() + group * places;
                    for (const Run& run : runs)
                        for (size_t at = 0; at < run.count; ++at) {
                            const size_t to = run.to + at;
                            panel[to / LANES * step + word * LANES + to % LANES] =
                                run.from < 0 ? pads[group] : plane[run.from + at];
                        }
                }
            }
}

void conv_integer(const py::buffer& x, const py::buffer& words, int32_t x_zero,
                  const py::buffer& w_zero, const py::buffer& out, const Three& sizes,
                  const Three& kernel, const Three& stride, const Three& dilation,
                  const Signed& begin, const Three& counts, bool is_signed, const std::string& name)
{
    const Matrix<const int32_t> from(x); // (channels, places)
    const Matrix<int32_t> to(out); // (channels, places)
    const Window window{sizes, kernel, stride, dilation, counts, begin};
    const size_t channels = from.columns() ? from.rows() : 0, groups = (channels + 3) / 4;
    const size_t taps = product_of(kernel), depth = taps * groups;
    require(from.columns() == product_of(sizes) && to.columns() == product_of(counts)
                && from.row() == from.columns(),
            "expected x (channels, places) without gaps and a result of the window's places");
    const Weights w(words, w_zero, depth, to.rows());
    const Way& way = way_of(name);
    py::gil_scoped_release unlocked;
    const uint32_t flip = is_signed ? SIGN : 0;
    const uint32_t zero = static_cast<uint32_t>(x_zero) + flip;
    const auto image = pack_image(from.data(), channels, from.columns(), flip);
    std::vector<uint32_t> pads(groups);
    for (size_t channel = 0; channel < channels; ++channel)
        pads[channel / 4] |= (zero & 0xffu) << 8 * (channel % 4);
    const uint32_t all = static_cast<uint32_t>(taps * channels) * zero;
    std::vector<uint32_t> panel(way.tiles * depth * LANES), shifts(way.tiles * LANES);
    std::vector<Run> runs;
    int32_t tile[LARGEST_TILE];
    for (size_t first = 0; first < to.columns(); first += way.tiles * LANES) {
        const size_t width = std::min(way.tiles * LANES, to.columns() - first);
        const size_t tiles = (width + LANES - 1) / LANES;
        fill_panel(window, image, pads, first, width, depth * LANES, runs, panel.data());
        for (size_t c = 0; w.shifted && c < width; ++c) {
            shifts[c] = 0u - all;
            for (size_t at = 0; at < depth; ++at)
                shifts[c] += sum_of(panel[(c / LANES * depth + at) * LANES + c % LANES]);
        }
        for (size_t row = 0; row < to.rows();) {
            const size_t inside = row % LANES;
            const size_t count = std::min({way.rows, LANES - inside, to.rows() - row});
            way.signed_rows({w.tile(row / LANES) + inside, 1, LANES}, count, panel.data(),
                            depth * LANES, tiles, depth, tile);
            for (size_t r = 0; r < count; ++r, ++row) {
                int32_t* target = to.data() + row * to.row() + first;
                const int32_t* made = tile + r * tiles * LANES;
                const uint32_t off = zero * w.sum(row), own = w.zero_of(row);
                for (size_t c = 0; c < width; ++c)
                    target[c] = static_cast<int32_t>(static_cast<uint32_t>(made[c]) - off);
                for (size_t c = 0; w.shifted && c < width; ++c)
                    target[c] =
                        static_cast<int32_t>(static_cast<uint32_t>(target[c]) - own * shifts[c]);
            }
        }
    }
}

// -- values and codes ----------------------------------------------------------------------------

// Calls with each run of values that have one channel: its first value, length and channel.
template <class Call>
void each_run(size_t count, size_t inner, size_t channels, const Call& call)
{
    if (channels == 1)
        return call(size_t{0}, count, size_t{0});
    for (size_t at = 0; at < count; at += inner)
        call(at, inner, at / inner % channels);
}

void require_channels(size_t count, size_t inner, size_t channels)
{
    require(channels > 0 && (channels == 1 || (inner > 0 && count % (inner * channels) == 0)),
            "expected whole channels");
}

void quantize(const py::buffer& x, const py::buffer& scale, const py::buffer& zero,
              const py::buffer& out, int32_t low, int32_t high, size_t inner,
              const std::string& name)
{
    const py::buffer_info from = floats(x), scales = floats(scale);
    const Line<const int32_t> zeros(zero);
    const Line<int32_t> to(out, true);
    const size_t count = from.size, of_scales = scales.size, of_zeros = zeros.size();
    const size_t channels = std::max(of_scales, of_zeros);
    require(count == to.size(), "expected as many codes as values");
    require((of_scales == 1 || of_scales == channels) && (of_zeros == 1 || of_zeros == channels),
            "expected one scale and zero point, or one for each channel");
    require_channels(count, inner, channels);
    const Way& way = way_of(name);
    py::gil_scoped_release unlocked;
    const float* values = static_cast<const float*>(from.ptr);
    const float* own = static_cast<const float*>(scales.ptr);
    each_run(count, inner, channels, [&](size_t at, size_t length, size_t channel) {
        way.quantize(values + at, own[of_scales > 1 ? channel : 0],
                     zeros.data()[of_zeros > 1 ? channel : 0], low, high, to.data() + at, length);
    });
}

void requantize(const py::buffer& x, const py::buffer& bias, const py::buffer& scale,
                const py::buffer& out, int32_t zero, int32_t low, int32_t high, size_t inner,
                const std::string& name)
{
    const Line<const int32_t> from(x), biases(bias);
    const py::buffer_info scales = floats(scale);
    const Line<int32_t> to(out, true);
    const size_t of_scales = scales.size, of_biases = biases.size();
    const size_t channels = std::max(of_scales, of_biases);
    require(from.size() == to.size(), "expected as many codes as sums");
    require((of_scales == 1 || of_scales == channels) && (of_biases == 1 || of_biases == channels),
            "expected one scale and bias, or one for each channel");
    require_channels(from.size(), inner, channels);
    const Way& way = way_of(name);
    py::gil_scoped_release unlocked;
    const float* own = static_cast<const float*>(scales.ptr);
    each_run(from.size(), inner, channels, [&](size_t at, size_t length, size_t channel) {
        way.requantize(from.data() + at, biases.data()[of_biases > 1 ? channel : 0],
                       own[of_scales > 1 ? channel : 0], zero, low, high, to.data() + at, length);
    });
}

py::list names()
{
    py::list made;
    for (const auto& [name, way] : ways())
        made.append(name);
    return made;
}

} // namespace

void add_integer(py::module_& m)
{
    m.attr("integer_ways") = names();
    m.def("matmul_integer", &matmul_integer, py::arg("a"), py::arg("words"), py::arg("a_zero"),
          py::arg("b_zero"), py::arg("out"), py::arg("signed"), py::arg("way") = "");
    m.def("conv_integer", &conv_integer, py::arg("x"), py::arg("words"), py::arg("x_zero"),
          py::arg("w_zero"), py::arg("out"), py::arg("sizes"), py::arg("kernel"),
          py::arg("stride"), py::arg("dilation"), py::arg("begin"), py::arg("counts"),
          py::arg("signed"), py::arg("way") = "");
    m.def("quantize", &quantize, py::arg("x"), py::arg("scale"), py::arg("zero"), py::arg("out"),
          py::arg("low"), py::arg("high"), py::arg("inner"), py::arg("way") = "");
    m.def("requantize", &requantize, py::arg("x"), py::arg("bias"), py::arg("scale"),
          py::arg("out"), py::arg("zero"), py::arg("low"), py::arg("high"), py::arg("inner"),
          py::arg("way") = "");
}
