// Products of matrices of codes of 8 bits; sums are exact, modulo 2**32.
//
//   matmul_integer(a, words, a_zero, b_zero, out, signed)      out = (a - a_zero) @ (b - b_zero)
//
// Examples: tests/ops/native/test_integer_loops.py.
#include "cpu_kernels/int8/int8_arrays.hpp"

#include <algorithm>
#include <vector>

namespace integer {
namespace {

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

} // namespace
} // namespace integer

void add_integer_matmul(py::module_& m)
{
    m.def("matmul_integer", &integer::matmul_integer, py::arg("a"), py::arg("words"), py::arg("a_zero"),
          py::arg("b_zero"), py::arg("out"), py::arg("signed"), py::arg("way") = "");
}

void add_integer_ways(py::module_& m)
{
    py::list names;
    for (const auto& [name, way] : integer::ways())
        names.append(name);
    m.attr("integer_ways") = names;
}
