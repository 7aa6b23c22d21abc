// Matmul of int8 and uint8 matrices. Sums are int32, modulo 2**32.
//
//   int8_matmul(a, words, a_zero, b_zero, out, signed)      out = (a - a_zero) @ (b - b_zero)
//
// Examples: tests/ops/native/test_integer_loops.py.
#include "cpu_kernels/int8/int8_arrays.hpp"

#include <algorithm>
#include <vector>

namespace int8 {
namespace {

struct PackedRows {
    std::vector<uint32_t> words, sums;
};

// Pack rows of a into words, with their sums if b has zero points.
PackedRows pack_rows(const Matrix<const int32_t>& a, size_t words, uint32_t flip, uint32_t zero,
                     bool sums)
{
    PackedRows result;
    result.words.resize(a.rows() * words);
    result.sums.assign(sums ? a.rows() : 0, 0);
    const size_t columns = a.columns(), full_words = columns / 4;
    for (size_t row = 0; row < a.rows(); ++row) {
        const int32_t* a_matrix = a.data() + row * a.row();
        uint32_t* out_matrix = result.words.data() + row * words;
        for (size_t at = 0; at < full_words; ++at)
            out_matrix[at] = biased_byte(a_matrix[4 * at], flip)
                             | biased_byte(a_matrix[4 * at + 1], flip) << 8
                             | biased_byte(a_matrix[4 * at + 2], flip) << 16
                             | biased_byte(a_matrix[4 * at + 3], flip) << 24;
        if (full_words < words)
            out_matrix[full_words] =
                pack_word(a_matrix + 4 * full_words, columns - 4 * full_words, flip);
        if (sums) {
            uint32_t sum = 0;
            for (size_t at = 0; at < words; ++at)
                sum += byte_sum(out_matrix[at]);
            result.sums[row] = sum - static_cast<uint32_t>(columns) * zero;
        }
    }
    return result;
}

void int8_matmul(const py::buffer& a, const py::buffer& words, int32_t a_zero,
                    const py::buffer& b_zero, const py::buffer& out, bool is_signed,
                    const std::string& target)
{
    const Matrix<const int32_t> a_matrix(a);
    const Matrix<int32_t> out_matrix(out);
    require(out_matrix.rows() == a_matrix.rows(), "expected as many rows in the result as in a");
    const size_t depth = (a_matrix.columns() + 3) / 4, columns = out_matrix.columns();
    const Weights b(words, b_zero, depth, columns);
    const Kernels& kernels = kernels_for(target);
    py::gil_scoped_release unlocked;
    const uint32_t flip = is_signed ? SIGN_BIT : 0;
    const uint32_t zero = static_cast<uint32_t>(a_zero) + flip;
    const PackedRows rows = pack_rows(a_matrix, depth, flip, zero, b.has_zero_points);
    int32_t tile[MAX_TILE];
    for (size_t first = 0; first < Weights::tiles(columns); first += kernels.tiles) {
        const size_t tiles = std::min(kernels.tiles, Weights::tiles(columns) - first);
        const size_t left = first * LANES, width = std::min(tiles * LANES, columns - left);
        for (size_t row = 0; row < a_matrix.rows(); row += kernels.rows) {
            const size_t count = std::min(kernels.rows, a_matrix.rows() - row);
            kernels.signed_columns({rows.words.data() + row * depth, depth, 1}, count,
                                   b.tile(first), b.tile_words(), tiles, depth, tile);
            for (size_t r = 0; r < count; ++r) {
                int32_t* target = out_matrix.data() + (row + r) * out_matrix.row() + left;
                const int32_t* result = tile + r * tiles * LANES;
                for (size_t c = 0; c < width; ++c)
                    target[c] = static_cast<int32_t>(static_cast<uint32_t>(result[c])
                                                     - zero * b.sum(left + c));
                for (size_t c = 0; b.has_zero_points && c < width; ++c)
                    target[c] = static_cast<int32_t>(static_cast<uint32_t>(target[c])
                                                     - rows.sums[row + r] * b.zero_point(left + c));
            }
        }
    }
}

} // namespace
} // namespace int8

void add_int8_matmul(py::module_& m)
{
    m.def("int8_matmul", &int8::int8_matmul, py::arg("a"), py::arg("words"), py::arg("a_zero"),
          py::arg("b_zero"), py::arg("out"), py::arg("signed"), py::arg("target") = "");
}

void add_int8_targets(py::module_& m)
{
    py::list names;
    for (const auto& [target, kernels] : int8::targets())
        names.append(target);
    m.attr("int8_targets") = names;
}
