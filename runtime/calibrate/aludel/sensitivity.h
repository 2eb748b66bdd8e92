#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/calibrate/aludel/gradient/cache_gradient.h"
#include "runtime/calibrate/fit/linear_fit.h"
#include "runtime/calibrate/fit/statistics.h"
#include "runtime/model/transformer.h"

namespace aludel {

// Columns of a cache row, K_0 V_0 K_1 V_1 ..., that one sensitivity matrix covers.
struct CacheColumns {
  int64_t first = 0;
  int64_t count = 0;

  static CacheColumns OfLayers(int first_layer, int layers, int kv_dim) {
    return {int64_t{2} * kv_dim * first_layer, int64_t{2} * kv_dim * layers};
  }
};

struct SensitivityOptions {
  int max_answer_tokens = 16;
  int samples = 1;  // of labels per prompt
  // A prompt's gradient is scaled down to this norm, so that no prompt counts for many.
  double max_norm = 3.0;
  // Tokens at a prompt's head that are never coded: their gradients count nowhere.
  int64_t head_tokens = 0;
  uint64_t seed = 1;
};

// Occurrences of one token id in cached prompts.
struct IdEnergy {
  double energy = 0;  // sum of |g|^2
  int64_t count = 0;
};

struct Sensitivity {
  // Per range of columns: the mean over cached tokens of g g^T [count, count], in the cache's units.
  std::vector<Moments> ranges;
  std::map<int32_t, IdEnergy> by_id;
  int64_t prompts = 0;
  int64_t tokens = 0;   // cached tokens, over prompts and samples
  int64_t limited = 0;  // gradients that were scaled down
};

// How much the consumer's answers feel an error in its cache: g is the gradient of sampled log-probabilities
// of its own greedy answer to each prompt, on its own cache, so that an error e of a token costs about
// e^T E[g g^T] e / 2 nats over the answer. `gradients` must hold the consumer's weights. Deterministic for a
// seed. Progress returning false ends it with Cancelled.
absl::StatusOr<Sensitivity> MeasureSensitivity(Transformer& consumer, CacheGradient& gradients,
                                               absl::Span<const std::vector<int32_t>> prompts,
                                               absl::Span<const CacheColumns> ranges,
                                               const SensitivityOptions& options,
                                               const CalibrationProgress& progress);

}  // namespace aludel
