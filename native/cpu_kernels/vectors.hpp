// The instruction sets that kernels are compiled for: the baseline of the architecture and, on x86,
// AVX2 and AVX-512, which most processors have but a portable build may not require. The version is
// selected at run time (function multiversioning).
#pragma once

#if defined(__GNUC__) && defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector) && __has_builtin(__builtin_convertvector)
#define HAS_VECTOR_EXTENSIONS // vector types of GCC and Clang
#endif
#endif

#if defined(__x86_64__) && !defined(__clang__)
#define MULTIVERSION // whole files are included within push_options and target
#include <immintrin.h>
#endif

#if defined(__x86_64__)
#define TARGET_AVX2 __attribute__((target("avx2,fma"))) // attribute of a function
#endif

// Return whether this processor runs TARGET_AVX2 functions.
inline bool has_avx2()
{
#ifdef TARGET_AVX2
    static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return has;
#else
    return false;
#endif
}

// Return whether this processor runs the AVX2 version of a file.
inline bool has_avx2_f16c()
{
#ifdef MULTIVERSION
    static const bool has = has_avx2() && __builtin_cpu_supports("f16c");
    return has;
#else
    return false;
#endif
}
