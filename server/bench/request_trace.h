#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace aludel {

// One request of a trace: a line of JSON with "timestamp" (ms), and "prompt" or "input_length" (tokens), "output_length" or
// "max_tokens" and "hash_ids", which name the prompt's blocks of kTraceBlock tokens: two requests whose ids begin alike have
// prompts that begin alike (Mooncake's format).
struct TraceRequest {
  double arrival = 0;  // seconds after the first
  int64_t line = 0;    // of the file, from 1
  std::string prompt;  // "": not said
  int64_t input_tokens = 0;
  int64_t output_tokens = 0;  // 0: not said
  std::vector<int64_t> blocks;
};

constexpr int64_t kTraceBlock = 512;

// In order of arrival. InvalidArgument names the line.
absl::StatusOr<std::vector<TraceRequest>> LoadTrace(const std::string& path);
// Those that share a timestamp are spread at random over the time until the next one: a clock of coarse steps does not mean
// that they came at once.
void SpreadArrivals(uint64_t seed, std::vector<TraceRequest>* trace);

}  // namespace aludel
