#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace aludel {

// LoRA adapters with random weights for a model, in PEFT's layout, for benchmarks and load tests: time and memory
// depend on shapes and not on what the weights are.
struct MakeAdapterOptions {
  std::string base;  // model directory
  std::string out;   // a directory that is empty or does not exist
  int64_t rank = 16;
  uint64_t seed = 1;        // same seed, same bytes
  double strength = 0.05;   // size of an update's outputs beside those of its matrix, about
  bool reads_only = false;  // no updates of keys and values: one that may read its base's cache alone
};

// Updates every linear layer but the head, in bf16.
absl::Status MakeAdapter(const MakeAdapterOptions& options);

}  // namespace aludel
