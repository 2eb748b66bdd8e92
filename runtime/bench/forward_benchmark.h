#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "runtime/kv/block_pool.h"
#include "runtime/model/transformer.h"

namespace aludel {

struct ForwardSeconds {
  double shared = 0;  // of what requests share, computed once
  double own = 0;     // of all that they do not, together

  double Sum() const { return shared + own; }
};

// Times a model's forward passes with no engine around them: the bound that an engine's schedule is held against.
// Requests share the whole blocks of their first tokens; ids are all the same. Not thread-safe.
class ForwardBenchmark {
 public:
  struct Shape {
    int64_t shared_tokens = 0;
    int64_t own_tokens = 1;
    int64_t output_tokens = 1;  // at most, of a measurement; memory is for as many
    int block_tokens = 16;
    int64_t step_tokens = 256;  // of one forward pass
    DType kv_dtype = DType::kBf16;
  };

  // `device` and `model` must outlive it.
  ForwardBenchmark(Device* device, Transformer* model, const Shape& shape)
      : device_(device), model_(model), shape_(shape) {}

  // What requests share once, what each has of its own in full steps, then `output_tokens` of all of them together.
  absl::StatusOr<ForwardSeconds> Run(int64_t requests, int64_t output_tokens);

 private:
  int64_t Length() const { return shape_.shared_tokens + shape_.own_tokens + shape_.output_tokens; }
  // Tokens [begin, end) of every table, one table after the other, in steps of as many tokens as fit.
  absl::Status Forward(BlockPool& pool, const std::vector<BlockTable>& tables, int64_t begin, int64_t end);

  Device* const device_;
  Transformer* const model_;
  const Shape shape_;
  std::vector<int32_t> ids_;
  std::vector<float> logits_;
};

}  // namespace aludel
