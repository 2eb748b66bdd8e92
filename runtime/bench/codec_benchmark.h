#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace aludel {

struct CodecBenchmarkOptions {
  std::string producer, consumer;  // models, as ModelPath::Parse takes them
  std::string codec;               // directory
  std::vector<std::string> formats;
  int64_t tokens = 512;  // of the prompt, random ids
  int repeats = 5;
  DType compute = DType::kBf16;
};

// Medians over the repeats, of one prompt.
struct CodecTimes {
  std::string format;
  double bytes_per_token = 0;
  // Within the producer's prefill. On a device that works while the host goes on: what a prefill with
  // encoding takes longer than the same without, in turns; where noise is more than that, it may be less
  // than 0.
  double encode_seconds = 0;
  double recompute_seconds = 0;    // what the consumer computes of itself before codes are looked at
  double reconstruct_seconds = 0;  // codes to cache
  // How far two timings of encoding and reconstruction, over prefill, are apart (halves_spread.h); nothing of one repeat.
  std::optional<double> spread;
  double encode_flops = 0;  // of all tokens; 0 where the format does not say
  double reconstruct_flops = 0;
};

struct CodecBenchmark {
  double gemm_flops = 0;       // a second, of the device's own product of tokens x hidden x ffn
  double prefill_seconds = 0;  // the consumer's own, of all tokens
  int64_t raw_bytes = 0;       // of the prompt's cache
  std::vector<CodecTimes> formats;
};

// How long encoding and reconstruction take beside the prefill that they replace, in one process, one thread
// after the other. `progress` hears of every pass; false ends with Cancelled.
absl::StatusOr<CodecBenchmark> BenchmarkCodecs(
    const CodecBenchmarkOptions& options, Device* device,
    const std::function<bool(int64_t done, int64_t total)>& progress);

}  // namespace aludel
