// Loops over weights of few bits, whose words vksched/ops/products/blocks.py lays out:
//
//   linear_packed("q4_K", x, words, bias, out)    out = x @ values.T (+ bias), for few rows of x
//   unpack("q4_K", words, out)                    the values
//
// Written in the vectors that GCC and Clang have for all processors; GCC compiles them twice for x86.
// Without such a compiler there are none, and numpy does it. Examples: tests/ops/test_packed_loops.py.
#include "packed.hpp"

#include <map>
#include <vector>

#ifdef HAS_VECTORS
namespace {

constexpr uint32_t SUMS = 16;

// Values are float16 or bfloat16; or how heads hold scales: two float16 in a word; a scale and a
// shift in a word; powers of two, four in a word; numbers of six bits times two float16; 16 numbers
// of eight bits times one; 16 scales and shifts of four bits times two; 16, or 8, scales of six bits
// times one.
enum Scales {
    FLOATS, BFLOATS, HALVES, PAIRS, POWERS, SIX_BITS, EIGHT_BITS, NIBBLES, SIXTEEN_OF_SIX,
    EIGHT_OF_SIX
};

// What codes stand for: themselves, less the zero; or values of a table.
enum Table { NUMBERS, STEPS, HALVED };

constexpr float steps_table[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};
constexpr float powers_table[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

template <uint32_t LOW, uint32_t HIGH, uint32_t HEAD, int32_t ZERO, Scales KIND,
          Table TABLE = NUMBERS>
struct Format {
    static constexpr uint32_t low = LOW, high = HIGH, head = HEAD;
    static constexpr int32_t zero = ZERO;
    static constexpr Scales kind = KIND;
    static constexpr Table table = TABLE;
    static constexpr bool shifts = // EIGHT_BITS: those of the zero, exact in float32
        KIND == PAIRS || KIND == SIX_BITS || KIND == NIBBLES || KIND == EIGHT_BITS;
    static constexpr bool is_signed = HIGH == 0 && ZERO == 1 << (LOW - 1); // in two's complement
    static constexpr uint32_t parts = // of a tile, each with a scale
        KIND == EIGHT_BITS || KIND == NIBBLES || KIND == SIXTEEN_OF_SIX ? 16 : 8;
};

template <class Format>
constexpr uint32_t words_of()
{
    return Format::head + RUNS * (Format::low + Format::high);
}

struct Loops {
    PackedLoop linear, unpack;
    uint32_t low, tile_words;
};

// clang-format off
#define FORMATS(F) \
    F("f16", 16, 0, 0, 0, FLOATS) F("bf16", 16, 0, 0, 0, BFLOATS) \
    F("q8_0", 8, 0, 4, 128, HALVES) F("q4_0", 4, 0, 4, 8, HALVES) F("q5_0", 4, 1, 4, 16, HALVES) \
    F("q4_1", 4, 0, 8, 0, PAIRS) F("q5_1", 4, 1, 8, 0, PAIRS) \
    F("q4_K", 4, 0, 4, 0, SIX_BITS) F("q5_K", 4, 1, 4, 0, SIX_BITS) \
    F("q6_K", 4, 2, 6, 32, EIGHT_BITS) F("q2_K", 2, 0, 6, 0, NIBBLES) \
    F("q3_K", 2, 1, 4, 4, SIXTEEN_OF_SIX) F("iq4_nl", 4, 0, 4, 0, HALVES, STEPS) \
    F("iq4_xs", 4, 0, 2, 0, EIGHT_OF_SIX, STEPS) F("mxfp4", 4, 0, 2, 0, POWERS, HALVED)
#define LOOPS_OF(NAME, LOW, ...) \
    {NAME, {linear<Format<LOW, __VA_ARGS__>>, unpack<Format<LOW, __VA_ARGS__>>, \
            LOW, words_of<Format<LOW, __VA_ARGS__>>()}},
// clang-format on

namespace plain {
#include "packed_ways.hpp"
const std::map<std::string, Loops> all{FORMATS(LOOPS_OF)};
} // namespace plain

#ifdef COMPILED_TWICE
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define HAS_F16C
namespace wider {
#include "packed_ways.hpp"
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

Packed packed(const Matrix& words, size_t columns)
{
    require(columns % RUN == 0, "expected whole runs");
    Packed made{};
    made.words = static_cast<const uint32_t*>(words.info.ptr);
    made.rows = words.rows();
    made.row_words = words.row();
    made.columns = columns;
    return made;
}

void linear_packed(const std::string& name, const py::buffer& x, const py::buffer& words,
                   const py::object& bias, const py::buffer& out, bool wide)
{
    const Matrix from(x, false), weight(words, true), to(out, false, true);
    require(from.row() == from.columns() && to.rows() == from.rows()
                && to.columns() == weight.rows(),
            "expected x (m, k) without gaps, n rows of words and a result (m, n)");
    Packed told = packed(weight, from.columns());
    require(weight.columns() == row_words_of(name, told.columns), "expected other rows of words");
    told.out_row = to.row();
    py::buffer_info shift;
    if (!bias.is_none()) {
        shift = floats(py::cast<py::buffer>(bias));
        require(static_cast<size_t>(shift.size) == told.rows, "expected a bias for each row");
        told.bias = static_cast<const float*>(shift.ptr);
    }
    const PackedLoop loop = loops_of(name, wide).linear;
    py::gil_scoped_release unlocked;
    loop(told, static_cast<const float*>(from.info.ptr), from.rows(),
         static_cast<float*>(to.info.ptr));
}

void unpack(const std::string& name, const py::buffer& words, const py::buffer& out, bool wide)
{
    const Matrix weight(words, true), to(out, false, true);
    require(to.row() == to.columns() && to.rows() == weight.rows(), "expected a result (n, k)");
    const Packed told = packed(weight, to.columns());
    require(weight.columns() == row_words_of(name, told.columns), "expected other rows of words");
    const PackedLoop loop = loops_of(name, wide).unpack;
    py::gil_scoped_release unlocked;
    loop(told, nullptr, 0, static_cast<float*>(to.info.ptr));
}

} // namespace

PackedLoop packed_loop(const std::string& name, bool wide) { return loops_of(name, wide).linear; }

void add_packed(py::module_& m)
{
    m.attr("packed_formats") = names();
    m.def("linear_packed", &linear_packed, py::arg("format"), py::arg("x"), py::arg("words"),
          py::arg("bias"), py::arg("out"), py::arg("wide") = true);
    m.def("unpack", &unpack, py::arg("format"), py::arg("words"), py::arg("out"),
          py::arg("wide") = true);
}
#else
void add_packed(py::module_& m) { m.attr("packed_formats") = py::list(); }
#endif
