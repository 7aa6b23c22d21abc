// Which vectors loops are compiled for: those of all processors and, on x86, wider ones too, as most
// processors have wider ones than a build for all of them may use.
#pragma once

#if defined(__GNUC__) && defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector) && __has_builtin(__builtin_convertvector)
#define HAS_VECTORS // types of GCC and Clang
#endif
#endif

#if defined(__x86_64__) && !defined(__clang__)
#define COMPILED_TWICE // a file within push_options and target
#include <immintrin.h>
#endif

#if defined(__x86_64__)
#define WIDE __attribute__((target("avx2,fma"))) // of a function
#endif

// Whether this processor runs what is WIDE.
inline bool has_wide()
{
#ifdef WIDE
    static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return has;
#else
    return false;
#endif
}

// Whether it runs a file that is compiled twice.
inline bool has_wider()
{
#ifdef COMPILED_TWICE
    static const bool has = has_wide() && __builtin_cpu_supports("f16c");
    return has;
#else
    return false;
#endif
}
