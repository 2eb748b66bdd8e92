#pragma once

// ALUDEL_SIMD compiles a function several times and picks the best for this CPU when the program starts, so
// that one binary runs everywhere and fast where it can. Sanitizer runtimes are not ready when such choices
// are made, and only need the portable version.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define ALUDEL_SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ALUDEL_SIMD
#endif
