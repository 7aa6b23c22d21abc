// Products of weights of few bits whose other operand is rounded to 8 bits, as
// vksched/ops/quantized/q8_activations.py has it: integers meet integers. bindings.cpp has what Python calls.
//
// Codes of x lie in the order in which words hold those of a weight. On x86 compiled for several
// kinds of processors. Examples: tests/ops/native/test_q8_native.py.
#include "cpu_kernels/quantized/formats.hpp"

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

// clang-format off
#define WAYS_OF(NAME, LOW, ...) \
    {NAME, {round_rows<Format<LOW, __VA_ARGS__>::parts, LOW>, linear<Format<LOW, __VA_ARGS__>>, \
            LOW, words_of<Format<LOW, __VA_ARGS__>>()}},
// clang-format on

namespace plain {
#include "cpu_kernels/quantized/q8_matmul_simd.hpp"
const std::map<std::string, RoundedFormat> all{BLOCK_FORMATS(WAYS_OF)};
} // namespace plain

#ifdef COMPILED_TWICE
#define HAS_F16C
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define WAY_MADD
namespace madd {
#include "cpu_kernels/quantized/q8_matmul_simd.hpp"
const std::map<std::string, RoundedFormat> all{BLOCK_FORMATS(WAYS_OF)};
} // namespace madd
#undef WAY_MADD
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#define WAY_DOT
namespace vnni {
#include "cpu_kernels/quantized/q8_matmul_simd.hpp"
const std::map<std::string, RoundedFormat> all{BLOCK_FORMATS(WAYS_OF)};
} // namespace vnni
#undef WAY_DOT
#pragma GCC pop_options
#endif

using Way = std::pair<std::string, const std::map<std::string, RoundedFormat>*>;

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

} // namespace

const RoundedFormat& rounded_format(const std::string& name, const std::string& way)
{
    for (const auto& [own, formats] : ways())
        if (way.empty() || way == own) {
            const auto found = formats->find(name);
            if (found == formats->end())
                throw KeyError(name);
            return found->second;
        }
    throw KeyError(way);
}

std::vector<std::string> rounded_formats()
{
    std::vector<std::string> made;
    for (const auto& [name, format] : plain::all)
        made.push_back(name);
    return made;
}

std::vector<std::string> rounded_ways()
{
    std::vector<std::string> made;
    for (const auto& [name, formats] : ways())
        made.push_back(name);
    return made;
}
#endif
