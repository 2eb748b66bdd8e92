#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/calibrate/fit/statistics.h"
#include "runtime/codec/scd/weights.h"
#include "runtime/model/transformer.h"

namespace aludel {

// Controls with 0 .. max_recomputed_layers recomputed layers, fitted in one pass of the consumer over `prompts`.
absl::StatusOr<std::vector<ControlWeights>> FitControls(Transformer& consumer,
                                                        const std::vector<std::vector<int32_t>>& prompts,
                                                        int max_recomputed_layers, double ridge,
                                                        const CalibrationProgress& progress);

}  // namespace aludel
