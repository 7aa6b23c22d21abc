// Differences between compilers and systems. Tested with GCC and Clang on Linux; the rest follows
// the manuals.
#pragma once

#if defined(_MSC_VER)
#define VISIBLE __declspec(dllexport)
#define INLINED static __forceinline
#else
#define VISIBLE __attribute__((visibility("default")))
#define INLINED static inline __attribute__((always_inline))
#endif

namespace vksched {

// Return a function that a loaded module exports, or null.
void* find_in_module(const char* path, const char* name);

} // namespace vksched
