#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/tensor.h"
#include "runtime/calibrate/fit/linear_fit.h"
#include "runtime/model/transformer.h"

namespace aludel {

// Token ids of calibration prompts. Fits see `train`; choices are made and errors measured on `held_out`.
struct CalibrationPrompts {
  std::vector<std::vector<int32_t>> train;
  std::vector<std::vector<int32_t>> held_out;
};

// Called as work proceeds; false asks calibration to stop with Cancelled.
using CalibrationProgress = std::function<bool(absl::string_view stage, int64_t done, int64_t total)>;

// Attention inputs of both models for the same tokens: a bounded sample.
struct StateSample {
  int64_t tokens = 0;
  std::vector<Bf16> producer;  // [tokens, hidden]
  std::vector<Bf16> consumer;  // [tokens, hidden]
};

// What the fits of one layer need. X = [A B] side by side, producer first.
struct LayerStatistics {
  Moments k;  // X^T X [2 kv_dim, 2 kv_dim], keys before RoPE
  Moments v;  // X^T X [2 kv_dim, 2 kv_dim]
  Moments h;  // X^T X [2 hidden, 2 hidden], attention inputs
  StateSample train;
  StateSample held_out;
};

struct StatisticsOptions {
  int64_t sample_tokens = 32768;          // per layer, of the training prompts
  int64_t held_out_sample_tokens = 4096;  // per layer
  uint64_t seed = 1;
};

// Runs both models over all prompts once and accumulates. Memory is bounded by the model's width and the
// samples (StatisticsBytes), never by the text.
absl::StatusOr<std::vector<LayerStatistics>> CollectStatistics(Transformer& producer, Transformer& consumer,
                                                               const CalibrationPrompts& prompts,
                                                               const StatisticsOptions& options,
                                                               const CalibrationProgress& progress);

size_t StatisticsBytes(const ModelConfig& config, const StatisticsOptions& options);

}  // namespace aludel
