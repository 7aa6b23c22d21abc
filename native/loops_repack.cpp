// Words of weights of few bits, from blocks as GGUF files hold them:
//
//   repack("q4_K", blocks, words)    blocks: (rows, bytes of a row), words: (rows, words of a row)
//
// Compiled as loops_packed.cpp is; without such a compiler numpy does it.
// Examples: tests/ops/test_blocks.py.
#include "packed.hpp"

#include <map>

#ifdef HAS_VECTORS
namespace {

// Rows of blocks, and how far the rows of words lie apart.
struct Blocks {
    const uint8_t* bytes;
    size_t rows, columns, row_words;
};

// A block is a run: scales, fifth bits, codes. Or a tile, of a type of that name.
enum Kind { RUNS_ALONE, K2, K3, K4, K5, K6, IQ4_XS };

// FLIPPED: bits that make a code one in two's complement. BLOCK: bytes of a block.
template <Kind KIND, uint32_t LOW, uint32_t HIGH, uint32_t HEAD, uint32_t BLOCK,
          uint32_t FLIPPED = 0>
struct Format {
    static constexpr Kind kind = KIND;
    static constexpr uint32_t low = LOW, high = HIGH, head = HEAD, block = BLOCK;
    static constexpr uint8_t flipped = FLIPPED;
};

struct Repacking {
    void (*repack)(const Blocks&, uint32_t*);
    uint32_t block, values, low, tile_words;
};

// clang-format off
#define REPACKING(NAME, KIND, LOW, HIGH, HEAD, ...) \
    {NAME, {repack<Format<KIND, LOW, HIGH, HEAD, __VA_ARGS__>>, \
            Format<KIND, LOW, HIGH, HEAD, __VA_ARGS__>::block, KIND == RUNS_ALONE ? RUN : TILE, \
            LOW, HEAD + RUNS * (LOW + HIGH)}},
#define ALL_REPACKING \
    REPACKING("q8_0", RUNS_ALONE, 8, 0, 4, 34) REPACKING("q4_0", RUNS_ALONE, 4, 0, 4, 18, 8) \
    REPACKING("q4_1", RUNS_ALONE, 4, 0, 8, 20) REPACKING("q5_0", RUNS_ALONE, 4, 1, 4, 22) \
    REPACKING("q5_1", RUNS_ALONE, 4, 1, 8, 24) REPACKING("iq4_nl", RUNS_ALONE, 4, 0, 4, 18) \
    REPACKING("mxfp4", RUNS_ALONE, 4, 0, 2, 17) REPACKING("q2_K", K2, 2, 0, 6, 84) \
    REPACKING("q3_K", K3, 2, 1, 4, 110) REPACKING("q4_K", K4, 4, 0, 4, 144) \
    REPACKING("q5_K", K5, 4, 1, 4, 176) REPACKING("q6_K", K6, 4, 2, 6, 210) \
    REPACKING("iq4_xs", IQ4_XS, 4, 0, 2, 136)
// clang-format on

namespace plain {
#include "repack_ways.hpp"
const std::map<std::string, Repacking> all{ALL_REPACKING};
} // namespace plain

#ifdef COMPILED_TWICE
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
namespace wider {
#include "repack_ways.hpp"
const std::map<std::string, Repacking> all{ALL_REPACKING};
} // namespace wider
#pragma GCC pop_options
#else
namespace wider = plain;
#endif

void repack(const std::string& name, const py::buffer& blocks, const py::buffer& words, bool wide)
{
    const auto& ways = wide && has_wider() ? wider::all : plain::all;
    const auto found = ways.find(name);
    if (found == ways.end())
        throw py::key_error(name);
    const Repacking& way = found->second;
    const py::buffer_info from = blocks.request();
    const Matrix to(words, true, true);
    require(from.itemsize == 1 && from.ndim == 2 && from.shape[1] % way.block == 0
                && (from.shape[1] < 2 || from.strides[1] == 1)
                && (from.shape[0] < 2 || from.strides[0] == from.shape[1]),
            "expected rows of whole blocks, without gaps");
    const size_t columns = from.shape[1] / way.block * way.values;
    require(to.rows() == static_cast<size_t>(from.shape[0])
                && to.columns() == row_words(columns, way.tile_words, way.low),
            "expected a row of words for each row of blocks");
    const Blocks told{static_cast<const uint8_t*>(from.ptr), to.rows(), columns, to.row()};
    py::gil_scoped_release unlocked;
    way.repack(told, static_cast<uint32_t*>(to.info.ptr));
}

} // namespace

void add_repack(py::module_& m)
{
    m.def("repack", &repack, py::arg("format"), py::arg("blocks"), py::arg("words"),
          py::arg("wide") = true);
}
#else
void add_repack(py::module_&) {}
#endif
