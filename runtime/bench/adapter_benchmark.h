#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/weight_format.h"

namespace aludel {

// What LoRA adapters beside their base cost a step (runtime/model/adapters/lora_weights.h).
struct AdapterBenchmarkOptions {
  std::string model;     // directory
  int64_t adapters = 8;  // in one batch, random, over every linear layer but the head
  int64_t rank = 16;
  int64_t rows = 8;       // that decode, dealt out over the adapters
  int64_t context = 256;  // tokens in the cache of each
  int64_t prefill = 256;  // tokens of a prompt's chunk
  int64_t steps = 30;     // of each kind
  DType compute = DType::kBf16;
  std::optional<WeightFormat> weights;
};

// Medians over steps that take turns, so that what else the machine does strikes all alike.
struct StepTime {
  double seconds = 0;
  double processor_seconds = 0;  // of the whole process: what its threads wait for each other counts
  // How far two timings, each over the base's in the same turns, are apart (halves_spread.h); nothing of one step.
  std::optional<double> spread = std::nullopt;
};

struct AdapterBenchmark {
  StepTime base;      // rows of the base alone
  StepTime adapters;  // the same rows, each of an adapter
  StepTime same;      // the same rows, all of one adapter
  StepTime base_prefill;
  StepTime adapter_prefill;   // the same chunk with one adapter
  int64_t base_bytes = 0;     // of the base's weights, that a step reads
  int64_t adapter_bytes = 0;  // of one, on the device
  double load_seconds = 0;    // of one, from the page cache
};

// Writes the adapters to a directory of their own among temporary files, and removes it. `progress` hears of steps
// done; false ends with Cancelled.
absl::StatusOr<AdapterBenchmark> BenchmarkAdapters(
    const AdapterBenchmarkOptions& options, Device* device,
    const std::function<bool(int64_t done, int64_t total)>& progress);

}  // namespace aludel
