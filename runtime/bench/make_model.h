#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"

namespace aludel {

// Checkpoints of published shapes with random weights, in HuggingFace's format, for benchmarks: time and
// memory depend on shapes and not on what the weights are.

struct MakeModelOptions {
  std::string shape;      // a name of ModelShapeNames()
  std::string out;        // a directory that is empty or does not exist
  std::string tokenizer;  // a model directory whose tokenizer files are copied; empty: none, servers want one
  int layers = 0;         // instead of the shape's; 0: those
  uint64_t seed = 1;      // same seed, same bytes
  int64_t shard_bytes = 5'000'000'000;
};

// "llama-1b, llama-8b, ..." for help texts and errors.
std::string ModelShapeNames();

// Streams the weights to disk in bf16 and reports bytes done of total now and then. config.json comes last: a
// directory without it was cut short. Cancelled, with the files removed, once `progress` answers false.
absl::Status MakeModel(const MakeModelOptions& options,
                       const std::function<bool(int64_t done, int64_t total)>& progress);

}  // namespace aludel
