// Convolutions of codes of 8 bits; sums are exact, modulo 2**32.
//
//   conv_integer(x, words, x_zero, w_zero, out, signed, ...)   matmul_integer of windows of an image
//
// Examples: tests/ops/native/test_integer_loops.py.
#include "cpu_kernels/int8/int8_arrays.hpp"

#include <pybind11/stl.h>

#include <algorithm>
#include <array>
#include <vector>

namespace integer {
namespace {

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

} // namespace
} // namespace integer

void add_integer_conv(py::module_& m)
{
    m.def("conv_integer", &integer::conv_integer, py::arg("x"), py::arg("words"), py::arg("x_zero"),
          py::arg("w_zero"), py::arg("out"), py::arg("sizes"), py::arg("kernel"),
          py::arg("stride"), py::arg("dilation"), py::arg("begin"), py::arg("counts"),
          py::arg("signed"), py::arg("way") = "");
}
