// Loops over weights of few bits, whose words vksched/ops/products/blocks.py lays out:
//
//   linear_packed("q4_K", x, words, bias, out)    out = x @ values.T (+ bias), for few rows of x
//   unpack("q4_K", words, out)                    the values
//
// Written in the vectors that GCC and Clang have for all processors; GCC compiles them twice for x86.
// Without such a compiler there are none, and numpy does it. Examples: tests/ops/test_packed_loops.py.
#include "loops/packed/formats.hpp"

#include <map>
#include <vector>

#ifdef HAS_VECTORS
namespace {

constexpr uint32_t SUMS = 16;

struct Loops {
    PackedLoop linear, unpack;
    uint32_t low, tile_words;
};

// clang-format off
#define LOOPS_OF(NAME, LOW, ...) \
    {NAME, {linear<Format<LOW, __VA_ARGS__>>, unpack<Format<LOW, __VA_ARGS__>>, \
            LOW, words_of<Format<LOW, __VA_ARGS__>>()}},
// clang-format on

namespace plain {
#include "loops/packed/ways.hpp"
const std::map<std::string, Loops> all{FORMATS(LOOPS_OF)};
} // namespace plain

#ifdef COMPILED_TWICE
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define HAS_F16C
namespace wider {
#include "loops/packed/ways.hpp"
const std::map<std::string, Loops> all{FORMATS(LOOPS_OF)};
} // namespace wider
#pragma GCC pop_options
#else
namespace wider = plain;
#endif

const Loops& loops_of(const std::string& name, bool wide)
{
    const auto& loops = wide && has_wider() ? wider::all : plain::all;
    const auto found = loops.find(name);
    if (found == loops.end())
        throw py::key_error(name);
    return found->second;
}

py::list names()
{
    py::list made;
    for (const auto& [name, loops] : plain::all)
        made.append(name);
    return made;
}

size_t row_words_of(const std::string& name, size_t columns)
{
    const Loops& loops = loops_of(name, false);
    return row_words(columns, loops.tile_words, loops.low);
}

void linear_packed(const std::string& name, const py::buffer& x, const py::buffer& words,
                   const py::object& bias, const py::buffer& out, bool wide)
{
    const Matrix<const float> from(x);
    const Matrix<const uint32_t> weight(words);
    const Matrix<float> to(out);
    require(from.row() == from.columns() && to.rows() == from.rows()
                && to.columns() == weight.rows(),
            "expected x (m, k) without gaps, n rows of words and a result (m, n)");
    Packed told = packed(weight, from.columns());
    require(weight.columns() == row_words_of(name, told.columns), "expected other rows of words");
    told.out_row = to.row();
    const py::buffer_info shift = bias_of(bias, told);
    const PackedLoop loop = loops_of(name, wide).linear;
    py::gil_scoped_release unlocked;
    loop(told, from.data(), from.rows(), to.data());
}

void unpack(const std::string& name, const py::buffer& words, const py::buffer& out, bool wide)
{
    const Matrix<const uint32_t> weight(words);
    const Matrix<float> to(out);
    require(to.row() == to.columns() && to.rows() == weight.rows(), "expected a result (n, k)");
    const Packed told = packed(weight, to.columns());
    require(weight.columns() == row_words_of(name, told.columns), "expected other rows of words");
    const PackedLoop loop = loops_of(name, wide).unpack;
    py::gil_scoped_release unlocked;
    loop(told, nullptr, 0, to.data());
}

} // namespace

PackedLoop packed_loop(const std::string& name, bool wide) { return loops_of(name, wide).linear; }

void add_packed(py::module_& m)
{
    m.attr("words_version") = WORDS_VERSION;
    m.attr("packed_formats") = names();
    m.def("linear_packed", &linear_packed, py::arg("format"), py::arg("x"), py::arg("words"),
          py::arg("bias"), py::arg("out"), py::arg("wide") = true);
    m.def("unpack", &unpack, py::arg("format"), py::arg("words"), py::arg("out"),
          py::arg("wide") = true);
}
#else
void add_packed(py::module_& m) { m.attr("packed_formats") = py::list(); }
#endif
