// Matmul of quantized weights and float32 activations, and dequantization.
// vksched/ops/quantized/quant_layout.py has the layout of the words; bindings.cpp has the functions
// that Python calls.
//
// The kernels use the vector extensions of GCC and Clang; GCC compiles them for two instruction
// sets on x86. Without these extensions there are no kernels, and numpy computes the ops. Examples:
// tests/ops/native/test_quantized_native.py.
#include "cpu_kernels/quantized/formats.hpp"

#include <map>
#include <vector>

#ifdef HAS_VECTOR_EXTENSIONS
namespace {

constexpr uint32_t SUMS = 16;

// clang-format off
#define QUANT_FORMAT_ENTRY(NAME, LOW, ...) \
    {NAME, {linear<Format<LOW, __VA_ARGS__>>, dequantize<Format<LOW, __VA_ARGS__>>, \
            LOW, tile_words_of<Format<LOW, __VA_ARGS__>>()}},
// clang-format on

namespace baseline {
#include "cpu_kernels/quantized/quant_matmul_simd.hpp"
const std::map<std::string, QuantFormat> formats{FORMATS(QUANT_FORMAT_ENTRY)};
} // namespace baseline

#ifdef MULTIVERSION
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#define HAS_F16C
namespace avx2 {
#include "cpu_kernels/quantized/quant_matmul_simd.hpp"
const std::map<std::string, QuantFormat> formats{FORMATS(QUANT_FORMAT_ENTRY)};
} // namespace avx2
#pragma GCC pop_options
#else
namespace avx2 = baseline;
#endif

} // namespace

const QuantFormat& quant_format(const std::string& name, bool wide)
{
    const auto& formats = wide && has_avx2_f16c() ? avx2::formats : baseline::formats;
    const auto entry = formats.find(name);
    if (entry == formats.end())
        throw KeyError(name);
    return entry->second;
}

std::vector<std::string> quant_formats()
{
    std::vector<std::string> result;
    for (const auto& [name, format] : baseline::formats)
        result.push_back(name);
    return result;
}
#endif
