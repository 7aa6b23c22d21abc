// Convolution of int8 and uint8 values. Sums are int32, modulo 2**32.
//
//   int8_conv(x, words, x_zero, w_zero, out, sizes, ..., signed)   int8_matmul of im2col windows
//
// Examples: tests/ops/native/test_integer_loops.py.
#include "cpu_kernels/int8/int8_arrays.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <vector>

namespace int8 {
namespace {

using Dims3 = std::array<size_t, 3>;
using SignedDims3 = std::array<py::ssize_t, 3>;

struct Window {
    Dims3 sizes, kernel, stride, dilation, counts;
    SignedDims3 begin;
};

size_t volume(const Dims3& sizes) { return sizes[0] * sizes[1] * sizes[2]; }

// Pack four channels of each position in a 32-bit word. Missing channels are 0.
std::vector<uint32_t> pack_image(const int32_t* x, size_t channels, size_t places, uint32_t flip)
{
    std::vector<uint32_t> result((channels + 3) / 4 * places);
    for (size_t channel = 0; channel < channels; ++channel) {
        const int32_t* from = x + channel * places;
        uint32_t* to = result.data() + channel / 4 * places;
        const uint32_t up = 8 * (channel % 4);
        for (size_t at = 0; at < places; ++at)
            to[at] |= biased_byte(from[at], flip) << up;
    }
    return result;
}

// Positions of a panel that are adjacent in the image. from: -1 in the padding.
struct Run {
    size_t to, count;
    py::ssize_t from;
};

// Find the runs of positions that one tap reads.
void find_runs(const Window& w, size_t first, size_t count, const Dims3& tap,
               std::vector<Run>& runs)
{
    runs.clear();
    const size_t inner = w.counts[2], plane = w.counts[1] * inner;
    Dims3 at{first / plane, first / inner % w.counts[1], first % inner};
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

// Pack the columns of tiles (im2col). padding_words: values outside of the image.
void pack_panel(const Window& w, const std::vector<uint32_t>& image,
                const std::vector<uint32_t>& padding_words, size_t first, size_t count, size_t step,
                std::vector<Run>& runs, uint32_t* panel)
{
    const size_t places = volume(w.sizes), groups = padding_words.size();
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
                                run.from < 0 ? padding_words[group] : plane[run.from + at];
                        }
                }
            }
}

void int8_conv(const py::buffer& x, const py::buffer& words, int32_t x_zero,
               const py::buffer& w_zero, const py::buffer& out, const Dims3& sizes,
               const Dims3& kernel, const Dims3& stride, const Dims3& dilation,
               const SignedDims3& begin, const Dims3& counts, bool is_signed,
               const std::string& target)
{
    const Matrix<const int32_t> from(x); // (channels, places)
    const Matrix<int32_t> to(out); // (channels, places)
    const Window window{sizes, kernel, stride, dilation, counts, begin};
    const size_t channels = from.columns() ? from.rows() : 0, groups = (channels + 3) / 4;
    const size_t taps = volume(kernel), depth = taps * groups;
    require(from.columns() == volume(sizes) && to.columns() == volume(counts)
                && from.row() == from.columns(),
            "expected x (channels, places) without gaps and a result of the window's places");
    const Weights w(words, w_zero, depth, to.rows());
    const Kernels& kernels = kernels_for(target);
    py::gil_scoped_release unlocked;
    const uint32_t flip = is_signed ? SIGN_BIT : 0;
    const uint32_t zero = static_cast<uint32_t>(x_zero) + flip;
    const auto image = pack_image(from.data(), channels, from.columns(), flip);
    std::vector<uint32_t> padding_words(groups);
    for (size_t channel = 0; channel < channels; ++channel)
        padding_words[channel / 4] |= (zero & 0xffu) << 8 * (channel % 4);
    const uint32_t zero_sum = static_cast<uint32_t>(taps * channels) * zero;
    std::vector<uint32_t> panel(kernels.tiles * depth * LANES), shifts(kernels.tiles * LANES);
    std::vector<Run> runs;
    int32_t tile[MAX_TILE];
    for (size_t first = 0; first < to.columns(); first += kernels.tiles * LANES) {
        const size_t width = std::min(kernels.tiles * LANES, to.columns() - first);
        const size_t tiles = (width + LANES - 1) / LANES;
        pack_panel(window, image, padding_words, first, width, depth * LANES, runs, panel.data());
        for (size_t c = 0; w.has_zero_points && c < width; ++c) {
            shifts[c] = 0u - zero_sum;
            for (size_t at = 0; at < depth; ++at)
                shifts[c] += byte_sum(panel[(c / LANES * depth + at) * LANES + c % LANES]);
        }
        for (size_t row = 0; row < to.rows();) {
            const size_t inside = row % LANES;
            const size_t count = std::min({kernels.rows, LANES - inside, to.rows() - row});
            kernels.signed_rows({w.tile(row / LANES) + inside, 1, LANES}, count, panel.data(),
                            depth * LANES, tiles, depth, tile);
            for (size_t r = 0; r < count; ++r, ++row) {
                int32_t* target = to.data() + row * to.row() + first;
                const int32_t* result = tile + r * tiles * LANES;
                const uint32_t offset = zero * w.sum(row), w_zero_point = w.zero_point(row);
                for (size_t c = 0; c < width; ++c)
                    target[c] = static_cast<int32_t>(static_cast<uint32_t>(result[c]) - offset);
                for (size_t c = 0; w.has_zero_points && c < width; ++c)
                    target[c] = static_cast<int32_t>(static_cast<uint32_t>(target[c])
                                                     - w_zero_point * shifts[c]);
            }
        }
    }
}

} // namespace
} // namespace int8

void add_int8_conv(py::module_& m)
{
    m.def("int8_conv", &int8::int8_conv, py::arg("x"), py::arg("words"), py::arg("x_zero"),
          py::arg("w_zero"), py::arg("out"), py::arg("sizes"), py::arg("kernel"),
          py::arg("stride"), py::arg("dilation"), py::arg("begin"), py::arg("counts"),
          py::arg("signed"), py::arg("target") = "");
}
