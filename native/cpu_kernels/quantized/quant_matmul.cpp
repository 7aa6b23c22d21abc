// Loops over weights of few bits, whose words vksched/ops/quantized/gguf_formats.py lays out; bindings.cpp has
// what Python calls.
//
// Written in the vectors that GCC and Clang have for all processors; GCC compiles them twice for x86.
// Without such a compiler there are none, and numpy does it. Examples: tests/ops/native/test_quantized_native.py.
#include "cpu_kernels/quantized/formats.hpp"

#include <map>
#include <vector>

#ifdef HAS_VECTORS
namespace {

constexpr uint32_t SUMS = 16;

// clang-format off
#define LOOPS_OF(NAME, LOW, ...) \
    {NAME, {linear<Format<LOW, __VA_ARGS__>>, unpack<Format<LOW, __VA_ARGS__>>, \
            LOW, words_of<Format<LOW, __VA_ARGS__>>()}},
// clang-format on

namespace plain {
#include "cpu_kernels/quantized/quant_matmul_simd.hpp"
const std::map<std::string, PackedFormat> all{FORMATS(LOOPS_OF)};
} // namespace plain

#ifdef COMPILED_TWICE
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define HAS_F16C
namespace wider {
#include "cpu_kernels/quantized/quant_matmul_simd.hpp"
const std::map<std::string, PackedFormat> all{FORMATS(LOOPS_OF)};
} // namespace wider
#pragma GCC pop_options
#else
namespace wider = plain;
#endif

} // namespace

const PackedFormat& packed_format(const std::string& name, bool wide)
{
    const auto& formats = wide && has_wider() ? wider::all : plain::all;
    const auto found = formats.find(name);
    if (found == formats.end())
        throw KeyError(name);
    return found->second;
}

std::vector<std::string> packed_formats()
{
    std::vector<std::string> made;
    for (const auto& [name, format] : plain::all)
        made.push_back(name);
    return made;
}
#endif
