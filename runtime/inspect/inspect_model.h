#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/weight_format.h"
#include "nlohmann/json.hpp"
#include "runtime/model/model_path.h"

namespace aludel {

// What `aludel-inspect` says, as JSON objects in reading order; inspect_text.h makes text of them.

struct MemoryPlanOptions {
  DType compute = DType::kBf16;
  std::optional<WeightFormat> weights;
  DType kv_dtype = DType::kBf16;
  int64_t concurrency = 8;
  int64_t context = 0;  // tokens of one sequence; 0: the model's own, at most 8192
};

// One model, with its adapter if it has one: architecture, size, weights and their types, tokenizer, bytes of
// KV cache per token, and memory for a server of `options`. Reads headers only. An error where config.json or the weight files
// cannot be read; what else is wrong stands in the object's "problems", which is empty for a model
// that loads.
absl::StatusOr<nlohmann::ordered_json> InspectModel(const ModelPath& path, const MemoryPlanOptions& options);

// Whether a cache of `producer` can serve `consumer`: the check that servers make when they meet, with what
// it finds explained. "fits" and "problems".
absl::StatusOr<nlohmann::ordered_json> InspectPair(const ModelPath& producer, const ModelPath& consumer);

}  // namespace aludel
