#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace aludel {

// Made-up states: latents whose deviations fall from `deviation` steps to a 64th of it, and bf16 numbers of one
// deviation. A chunk's frame, so that its bytes are in a core's cache, as they are where frames are made.
struct CoderBenchmarkOptions {
  int64_t tokens = 256;
  int64_t rank = 256;    // a symbol is a byte: 64 KiB of them
  double deviation = 8;  // codes have 8 bits
  int repeats = 15;
};

// Medians over the repeats.
struct CoderTimes {
  std::string coder;
  size_t bytes = 0;  // that go in: of symbols, or of bf16 numbers
  size_t coded = 0;  // that come out
  double encode_seconds = 0;
  double decode_seconds = 0;
};

struct CoderBenchmark {
  std::vector<CoderTimes> coders;
  double latent_entropy = 0;  // bits a symbol with one ideal table a latent, of these symbols themselves
};

// What entropy coders take on one thread of the host beside a copy of the same bytes, in turns, in one process. Internal
// where one does not give back what it got. `progress` hears of every pass; false ends with Cancelled.
absl::StatusOr<CoderBenchmark> BenchmarkCoders(
    const CoderBenchmarkOptions& options, const std::function<bool(int64_t done, int64_t total)>& progress);

}  // namespace aludel
