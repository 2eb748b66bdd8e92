#pragma once

#include <cstdint>
#include <optional>

#include "kernels/tensor.h"
#include "kernels/weight_format.h"

namespace aludel {

// How weight files are read.
struct StreamOptions {
  // Files of more than this share of the machine's memory do not pass through the page cache: it would push
  // out what is needed, and soon be pushed out itself.
  double cached_share = 0.25;
  // Threads that run tasks, at most 8. 0: one for each core that the calling thread may run on.
  int packers = 0;
};

struct TransformerOptions {
  DType compute = DType::kBf16;  // of GEMM inputs; sums, norms and the residual stream are always f32
  // How the device keeps the layers' matrices and the head: if nothing is said in the compute type, but for FP8 of
  // a checkpoint where the device keeps it (Weights::Load); in the compute type, whatever is stored; or rounded to a
  // format with scales, so that decoding reads fewer bytes. Embeddings stay in the compute type.
  std::optional<WeightFormat> weights;
  int64_t max_rows = 512;  // tokens of one Forward, over all items
  // Only for `dynamic` RoPE scaling, whose frequencies depend on the sequence's length: the length they are
  // fixed for, one for all requests, so that a token's key never changes after it was cached. 0: the model's
  // own context.
  int64_t rope_length = 0;
  StreamOptions stream;  // how weight files are read

  // Of what is not kept in FP8.
  WeightFormat weight_format() const { return weights.value_or(FormatOf(compute)); }
};

}  // namespace aludel
