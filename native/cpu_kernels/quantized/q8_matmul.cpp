// Matmul of quantized weights and activations that are quantized to int8 (Q8), as defined in
// vksched/ops/quantized/q8_activations.py: integer dot products. bindings.cpp has the functions
// that Python calls.
//
// The quants of activations have the order of the weight's words. On x86 the kernels are compiled
// for several instruction sets. Examples: tests/ops/native/test_q8_native.py.
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

#ifdef HAS_VECTOR_EXTENSIONS
namespace {

constexpr float MAX_QUANT = 127, MIN_ABSMAX = 1e-36f; // runs with a smaller absmax are 0
// One more than MAX_GEMV_ROWS of vksched/ops/linalg/matmul_kernels.py: those rows have equal bits.
constexpr size_t MIN_GEMM_ROWS = 9;
constexpr uint32_t GEMV_BLOCK = 4; // rows of x that share the unpacked quants

// Return the index within a run of the value whose quant is at a place. low: bits of the weight's
// quants. With 16 parts each word of quants belongs to one.
constexpr uint32_t value_index(uint32_t place, uint32_t parts, uint32_t low)
{
    if (low == 8)
        return place % 8 * 4 + place / 8;
    const uint32_t first = place % 16 / 4, second = place % 4;
    return parts == RUNS ? 8 * second + 4 * (place / 16) + first
                         : 8 * first + 4 * (place / 16) + second;
}

// clang-format off
#define Q8_FORMAT_ENTRY(NAME, LOW, ...) \
    {NAME, {quantize_rows<Format<LOW, __VA_ARGS__>::parts, LOW>, linear<Format<LOW, __VA_ARGS__>>, \
            LOW, tile_words_of<Format<LOW, __VA_ARGS__>>()}},
// clang-format on

namespace baseline {
#include "cpu_kernels/quantized/q8_matmul_simd.hpp"
const std::map<std::string, Q8Format> formats{BLOCK_FORMATS(Q8_FORMAT_ENTRY)};
} // namespace baseline

#ifdef MULTIVERSION
#define HAS_F16C
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define SIMD_AVX2
namespace avx2 {
#include "cpu_kernels/quantized/q8_matmul_simd.hpp"
const std::map<std::string, Q8Format> formats{BLOCK_FORMATS(Q8_FORMAT_ENTRY)};
} // namespace avx2
#undef SIMD_AVX2
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#define SIMD_AVX512_VNNI
namespace avx512_vnni {
#include "cpu_kernels/quantized/q8_matmul_simd.hpp"
const std::map<std::string, Q8Format> formats{BLOCK_FORMATS(Q8_FORMAT_ENTRY)};
} // namespace avx512_vnni
#undef SIMD_AVX512_VNNI
#pragma GCC pop_options
#endif

using Target = std::pair<std::string, const std::map<std::string, Q8Format>*>;

// The instruction sets that this processor supports, the fastest first.
const std::vector<Target>& targets()
{
    static const auto supported = [] {
        std::vector<Target> result;
#ifdef MULTIVERSION
        if (has_avx2_f16c() && __builtin_cpu_supports("avx512vnni")
            && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq")
            && __builtin_cpu_supports("avx512vl"))
            result.emplace_back("avx512_vnni", &avx512_vnni::formats);
        if (has_avx2_f16c())
            result.emplace_back("avx2", &avx2::formats);
#endif
        result.emplace_back("baseline", &baseline::formats);
        return result;
    }();
    return supported;
}

} // namespace

const Q8Format& q8_format(const std::string& name, const std::string& target)
{
    for (const auto& [target_name, formats] : targets())
        if (target.empty() || target == target_name) {
            const auto supported = formats->find(name);
            if (supported == formats->end())
                throw KeyError(name);
            return supported->second;
        }
    throw KeyError(target);
}

std::vector<std::string> q8_formats()
{
    std::vector<std::string> result;
    for (const auto& [name, format] : baseline::formats)
        result.push_back(name);
    return result;
}

std::vector<std::string> q8_targets()
{
    std::vector<std::string> result;
    for (const auto& [name, formats] : targets())
        result.push_back(name);
    return result;
}
#endif
