// Tiles of integer products, compiled for several kinds of processors on x86, by gemm_simd.hpp.
#include "cpu_kernels/int8/int8.hpp"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define SEVERAL_WAYS
#include <immintrin.h>
#endif

namespace integer {
namespace {

namespace plain {
#include "cpu_kernels/int8/gemm_simd.hpp"
}

#ifdef SEVERAL_WAYS
#pragma GCC push_options
#pragma GCC target("avx2")
#define WAY_MADD
namespace madd {
#include "cpu_kernels/int8/gemm_simd.hpp"
}
#undef WAY_MADD
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512vnni")
#define WAY_DOT
namespace dot {
#include "cpu_kernels/int8/gemm_simd.hpp"
}
#undef WAY_DOT
#pragma GCC pop_options
#endif

} // namespace

const std::vector<std::pair<std::string, Way>>& ways()
{
    static const auto found = [] {
        std::vector<std::pair<std::string, Way>> made;
#ifdef SEVERAL_WAYS
        if (__builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw")
            && __builtin_cpu_supports("avx512vl"))
            made.emplace_back("dot", dot::way);
        if (__builtin_cpu_supports("avx2"))
            made.emplace_back("madd", madd::way);
#endif
        made.emplace_back("plain", plain::way);
        return made;
    }();
    return found;
}

const Way& way_of(const std::string& name)
{
    for (const auto& [own, way] : ways())
        if (name.empty() || name == own)
            return way;
    throw KeyError(name);
}

} // namespace integer
