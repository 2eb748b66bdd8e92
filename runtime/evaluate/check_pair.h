#pragma once

#include "absl/status/statusor.h"
#include "runtime/model/model_config.h"
#include "runtime/model/model_path.h"

namespace aludel {

// The producer's config, with the smaller max_positions of both: prompts go through both. FailedPrecondition with every reason
// where the producer's cache is of no use to the consumer (WhyNoPair; tokenizers are compared where both directories have one).
// Reads no weights: to be called before they are loaded.
absl::StatusOr<ModelConfig> CheckPair(const ModelPath& producer, const ModelPath& consumer);

}  // namespace aludel
