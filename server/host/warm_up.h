#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor.h"
#include "runtime/model/transformer.h"

namespace aludel {

struct PrefillSample {
  int64_t tokens = 0;
  double seconds = 0;
};

// Prefills made-up prompts of growing length, each twice, until one takes long enough to tell: the first
// request then finds weights and working memory warm (it took four times as long as the second; pages of the
// engine's cache are still new to it), and the planner knows what prefill costs here. Returns each length's
// second time, or a third one where that was less, of one length at least. Uses KV pages of its own, of the
// engine's type, and frees them; `model` must be idle.
absl::StatusOr<std::vector<PrefillSample>> WarmUp(Transformer& model, DType kv_dtype);

}  // namespace aludel
