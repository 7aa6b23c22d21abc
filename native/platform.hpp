// What compilers and systems spell in their own ways. GCC and Clang on Linux are what is tried;
// the rest is written by the manuals.
#pragma once

#if defined(_MSC_VER)
#define VISIBLE __declspec(dllexport)
#define INLINED static __forceinline
#else
#define VISIBLE __attribute__((visibility("default")))
#define INLINED static inline __attribute__((always_inline))
#endif

namespace vksched {

// A function that a loaded module exports; null where there is none.
void* find_in_module(const char* path, const char* name);

} // namespace vksched
