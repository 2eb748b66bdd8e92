#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/scd/statistics.h"
#include "runtime/codec/scd/weights.h"

namespace aludel {

// Controls with 0 .. max_native_layers native layers, fitted in one pass of the consumer over `prompts`.
absl::StatusOr<std::vector<ControlWeights>> FitControls(Transformer& consumer,
                                                        const std::vector<std::vector<int32_t>>& prompts,
                                                        int max_native_layers, double ridge,
                                                        const CalibrationProgress& progress);

// The codec can only decode, and its decoder does all its work in Begin.
absl::StatusOr<std::unique_ptr<KvCodec>> MakeControlCodec(std::string name, const ControlWeights& weights,
                                                          const Transformer& model);

}  // namespace aludel
