// int8 GEMM microkernels, compiled for several instruction sets on x86 from gemm_simd.hpp.
#include "cpu_kernels/int8/int8.hpp"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define INT8_MULTIVERSION
#include <immintrin.h>
#endif

namespace int8 {
namespace {

namespace baseline {
#include "cpu_kernels/int8/gemm_simd.hpp"
}

#ifdef INT8_MULTIVERSION
#pragma GCC push_options
#pragma GCC target("avx2")
#define SIMD_AVX2
namespace avx2 {
#include "cpu_kernels/int8/gemm_simd.hpp"
}
#undef SIMD_AVX2
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vnni")
#define SIMD_AVX512_VNNI
namespace avx512_vnni {
#include "cpu_kernels/int8/gemm_simd.hpp"
}
#undef SIMD_AVX512_VNNI
#pragma GCC pop_options
#endif

} // namespace

const std::vector<std::pair<std::string, Kernels>>& targets()
{
    static const auto supported = [] {
        std::vector<std::pair<std::string, Kernels>> result;
#ifdef INT8_MULTIVERSION
        if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw")
            && __builtin_cpu_supports("avx512vl"))
            result.emplace_back("avx512_vnni", avx512_vnni::kernels);
        if (__builtin_cpu_supports("avx2"))
            result.emplace_back("avx2", avx2::kernels);
#endif
        result.emplace_back("baseline", baseline::kernels);
        return result;
    }();
    return supported;
}

const Kernels& kernels_for(const std::string& name)
{
    for (const auto& [target_name, kernels] : targets())
        if (name.empty() || name == target_name)
            return kernels;
    throw KeyError(name);
}

} // namespace int8
