#pragma once

#include "absl/status/status.h"
#include "kernels/tensor.h"
#include "runtime/model/transformer.h"

namespace aludel {

// Where the model's device times how to multiply (Device::times_products): takes a prefill step of each class of rows (RowClass), up
// to the longest step that the model takes, so that no request waits for that. Elsewhere nothing. Uses KV pages of its own, of
// that type, and frees them. The model must be idle.
absl::Status WarmUpPrefill(Transformer& model, DType kv_dtype);

}  // namespace aludel
