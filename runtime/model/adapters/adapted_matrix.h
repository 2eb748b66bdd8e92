#pragma once

#include <memory>

#include "runtime/model/adapters/lora_adapter.h"
#include "runtime/model/weights/stored_matrix.h"

namespace aludel {

// W + scale * B A of a stored W, computed in f32: readers round once, to what the weights are kept
// in, whatever W is stored as.
std::unique_ptr<StoredMatrix> Adapt(std::unique_ptr<StoredMatrix> matrix, const LoraUpdate& update);

}  // namespace aludel
