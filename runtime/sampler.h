#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace aludel {

struct SamplingParams {
  double temperature = 0.0;      // 0: greedy
  int top_k = 0;                 // 0: off
  double top_p = 1.0;            // 1: off
  std::optional<uint64_t> seed;  // unset: random
  int64_t max_tokens = 0;        // 0: as many as the context holds
  std::vector<std::string> stop;
  bool ignore_eos = false;
};

// Chooses tokens for one sequence. Filters as the field defines them: temperature first, then top-k, then the
// smallest set whose probability reaches top-p. The same seed and logits give the same tokens. Not
// thread-safe.
class Sampler {
 public:
  explicit Sampler(const SamplingParams& params);
  // logits [vocab], finite. Ties in greedy mode go to the lowest id.
  int32_t Sample(absl::Span<const float> logits);

 private:
  double temperature_;
  int top_k_;
  double top_p_;
  std::mt19937_64 random_;
  std::vector<std::pair<float, int32_t>> candidates_;  // reused between calls
};

}  // namespace aludel
