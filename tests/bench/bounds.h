#pragma once

#include <cstdint>

namespace aludel {

// What this machine can do at most, measured in the run that compares itself with it. Both take a fraction of
// a second and keep their result for the run.

// GB/s that `threads` threads read from memory at once, each its own part of a buffer far larger than the
// caches.
double ReadBandwidth(int threads);

// GFLOP/s of oneDNN's matrix product [rows, in] x [in, out] in bf16 (f32 where this CPU has no bf16), weights
// in the layout it likes best, on `threads` threads. 0 where oneDNN is not installed.
double LibraryGemm(int64_t rows, int64_t out, int64_t in, int threads);

}  // namespace aludel
