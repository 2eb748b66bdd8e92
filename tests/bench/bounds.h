#pragma once

#include <cstdint>

#include "kernels/device.h"

namespace aludel {

// What this machine can do at most, measured in the run that compares itself with it. Both take a fraction of
// a second and keep their result for the run.

// The better of two timings, and how far they are apart, by how much of their mean.
struct Bound {
  double rate = 0;
  double spread = 0;
};

// GB/s that `threads` threads read from memory at once, each its own part of a buffer far larger than
// the caches.
Bound ReadBandwidth(int threads);

// GFLOP/s of oneDNN's matrix product [rows, in] x [in, out] in bf16 (f32 where this CPU has no bf16), weights
// in the layout it likes best, on `threads` threads. 0 where oneDNN is not installed.
Bound LibraryGemm(int64_t rows, int64_t out, int64_t in, int threads);

// The same of a device: on the CPU the two above; on a card GB/s that a copy of 1 GiB within it reads and
// writes together, and GFLOP/s of its library's best square bf16 product of random numbers, whatever
// the shape.
Bound TimedBandwidth(Device& device, int threads);
Bound TimedPeakGemm(Device& device, int64_t rows, int64_t out, int64_t in, int threads);
// Their rates.
double Bandwidth(Device& device, int threads);
double PeakGemm(Device& device, int64_t rows, int64_t out, int64_t in, int threads);

}  // namespace aludel
