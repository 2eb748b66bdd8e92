#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/weight_format.h"

namespace aludel {

// Requests of random ids that begin with the same tokens, as with one system prompt.
struct EngineBenchmarkOptions {
  std::string model;      // as ModelPath::Parse takes it
  std::string tokenizer;  // directory; empty: the model's own
  int64_t requests = 64;
  int64_t alone = 0;  // how many of them are also run one at a time; 0: all
  int64_t shared_tokens = 256;
  int64_t own_tokens = 32;
  int64_t output_tokens = 64;
  int64_t max_num_batched_tokens = 256;  // of one engine step
  DType compute = DType::kBf16;
  std::optional<WeightFormat> weights;
  DType kv_dtype = DType::kBf16;
};

// What the users of some requests saw.
struct EngineRun {
  int64_t requests = 0;
  double seconds = 0;          // from the first request to the last token
  double forward_seconds = 0;  // of the same tokens through the model alone: no engine around it
  std::vector<double> ttft;    // seconds, by request
  std::vector<double> gaps;    // seconds between two tokens of one request
  uint64_t most_steps = 0;     // from one token of a request to its next; 1 is every step
  uint64_t prefix_queries = 0, prefix_hits = 0;  // tokens
  uint64_t preemptions = 0;
};

struct EngineBenchmark {
  EngineRun together;        // all at once
  EngineRun alone;           // one after the other
  int64_t same_answers = 0;  // of the requests that were run both ways, those with equal tokens
  int64_t step_bound = 0;    // MostStepsToAToken (runtime/engine/scheduler.h)
};

// Runs them on a new engine (runtime/engine/engine.h) of this process each time, prefix cache on, greedily.
// `progress` hears of tokens generated; false ends with Cancelled.
absl::StatusOr<EngineBenchmark> BenchmarkEngine(
    const EngineBenchmarkOptions& options, Device* device,
    const std::function<bool(int64_t done, int64_t total)>& progress);

}  // namespace aludel
