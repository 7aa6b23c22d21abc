// Products of weights of few bits whose other operand is rounded to 8 bits, as
// vksched/ops/products/rounded.py has it: integers meet integers.
//
//   round_rows("q4_K", x, rounded)                     x (m, k) as codes, scales and sums of codes
//   linear_rounded("q4_K", rounded, words, bias, out)  out = rounded @ values.T (+ bias)
//
// Codes of x lie in the order in which words hold those of a weight. On x86 compiled for several
// kinds of processors. Examples: tests/ops/test_rounded_loops.py.
#include "loops/packed/formats.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#if defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
#endif

#ifdef HAS_VECTORS
namespace {

constexpr float MOST_CODE = 127, LEAST_LARGEST = 1e-36f; // of a run; below it all of it is 0
constexpr size_t FEW_ROWS = 4; // from which on weights are made panels

// The value of a run whose code is at a place. low: bits of the codes it meets. Of 16 parts each word
// of codes belongs to one.
constexpr uint32_t value_at(uint32_t place, uint32_t parts, uint32_t low)
{
    if (low == 8)
        return place % 8 * 4 + place / 8;
    const uint32_t first = place % 16 / 4, second = place % 4;
    return parts == RUNS ? 8 * second + 4 * (place / 16) + first
                         : 8 * first + 4 * (place / 16) + second;
}

struct Ways {
    void (*round)(const float*, size_t, size_t, Rounded*);
    RoundedLoop linear;
    uint32_t low, tile_words;
};

// clang-format off
#define WAYS_OF(NAME, LOW, ...) \
    {NAME, {round_rows<Format<LOW, __VA_ARGS__>>, linear<Format<LOW, __VA_ARGS__>>, \
            LOW, words_of<Format<LOW, __VA_ARGS__>>()}},
// clang-format on

namespace plain {
#include "loops/packed/rounded_ways.hpp"
const std::map<std::string, Ways> all{BLOCK_FORMATS(WAYS_OF)};
} // namespace plain

#ifdef COMPILED_TWICE
#define HAS_F16C
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define WAY_MADD
namespace madd {
#include "loops/packed/rounded_ways.hpp"
const std::map<std::string, Ways> all{BLOCK_FORMATS(WAYS_OF)};
} // namespace madd
#undef WAY_MADD
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#define WAY_DOT
namespace vnni {
#include "loops/packed/rounded_ways.hpp"
const std::map<std::string, Ways> all{BLOCK_FORMATS(WAYS_OF)};
} // namespace vnni
#undef WAY_DOT
#pragma GCC pop_options
#endif

using Way = std::pair<std::string, const std::map<std::string, Ways>*>;

// What this processor runs, the fastest first.
const std::vector<Way>& ways()
{
    static const auto found = [] {
        std::vector<Way> made;
#ifdef COMPILED_TWICE
        if (has_wider() && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw")
            && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
            made.emplace_back("dot", &vnni::all);
        if (has_wider())
            made.emplace_back("madd", &madd::all);
#endif
        made.emplace_back("plain", &plain::all);
        return made;
    }();
    return found;
}

const Ways& ways_of(const std::string& format, const std::string& name)
{
    for (const auto& [own, formats] : ways())
        if (name.empty() || name == own) {
            const auto found = formats->find(format);
            if (found == formats->end())
                throw py::key_error(format);
            return found->second;
        }
    throw py::key_error(name);
}

py::list names_of_ways()
{
    py::list made;
    for (const auto& [name, formats] : ways())
        made.append(name);
    return made;
}

py::list names_of_formats()
{
    py::list made;
    for (const auto& [name, ways] : plain::all)
        made.append(name);
    return made;
}

// Words of a rounded row.
size_t rounded_words(size_t columns) { return (columns + TILE - 1) / TILE * ROUNDED_WORDS; }

// The columns of rounded rows, of which the last tile is as long as the words of the weight say.
size_t columns_of(const Matrix<const uint32_t>& rounded, size_t own_words, const Ways& ways)
{
    const size_t tiles = rounded.columns() / ROUNDED_WORDS;
    const size_t most = row_words(tiles * TILE, ways.tile_words, ways.low);
    const size_t missing = most < own_words ? RUNS : (most - own_words) / ways.low;
    require(missing < RUNS, "expected rounded rows of the weight's columns");
    return tiles * TILE - missing * RUN;
}

void round_rows(const std::string& format, const py::buffer& x, const py::buffer& out,
                const std::string& way)
{
    const Matrix<const float> from(x);
    const Matrix<uint32_t> to(out);
    const size_t columns = from.columns();
    require(from.row() == columns && columns % RUN == 0 && to.row() == to.columns()
                && to.rows() == from.rows() && to.columns() == rounded_words(columns),
            "expected x (m, k) without gaps and a result (m, words of rounded tiles)");
    const Ways& ways = ways_of(format, way);
    py::gil_scoped_release unlocked;
    ways.round(from.data(), from.rows(), columns, reinterpret_cast<Rounded*>(to.data()));
}

void linear_rounded(const std::string& format, const py::buffer& rounded, const py::buffer& words,
                    const py::object& bias, const py::buffer& out,
                    const std::string& way)
{
    const Matrix<const uint32_t> from(rounded), weight(words);
    const Matrix<float> to(out);
    const Ways& ways = ways_of(format, way);
    const size_t columns = columns_of(from, weight.columns(), ways);
    require(from.row() == from.columns() && from.columns() == rounded_words(columns)
                && to.rows() == from.rows() && to.columns() == weight.rows()
                && weight.columns() == row_words(columns, ways.tile_words, ways.low),
            "expected rounded rows (m, k), n rows of words and a result (m, n)");
    Packed told = packed(weight, columns);
    told.out_row = to.row();
    const py::buffer_info shift = bias_of(bias, told);
    py::gil_scoped_release unlocked;
    ways.linear(told, reinterpret_cast<const Rounded*>(from.data()), from.rows(), to.data());
}

} // namespace

RoundingLoop rounding_loop(const std::string& format, bool wide)
{
    return ways_of(format, wide ? "" : "plain").round;
}

RoundedLoop rounded_loop(const std::string& format, bool wide)
{
    return ways_of(format, wide ? "" : "plain").linear;
}

void add_rounded(py::module_& m)
{
    m.attr("rounded_formats") = names_of_formats();
    m.attr("rounded_ways") = names_of_ways();
    m.def("rounded_words", &rounded_words, py::arg("columns"));
    m.def("round_rows", &round_rows, py::arg("format"), py::arg("x"), py::arg("out"),
          py::arg("way") = "");
    m.def("linear_rounded", &linear_rounded, py::arg("format"), py::arg("rounded"),
          py::arg("words"), py::arg("bias"), py::arg("out"), py::arg("way") = "");
}
#else
void add_rounded(py::module_& m) { m.attr("rounded_formats") = py::list(); }
#endif
