#pragma once

#include <cstdint>

#include "runtime/model/adapters/lora_weights.h"
#include "server/host/adapter_pool.h"
#include "server/host/served_adapter.h"

namespace aludel {

// The adapter that answers a prompt, and from which of its tokens on: the cache of those before is the model's own.
struct RequestAdapter {
  AdapterPool::Handle served;  // null: the model alone answers
  int64_t begin = 0;

  const LoraWeights* weights() const { return served == nullptr ? nullptr : &served->weights(); }
  // Whose codes the prompt can come as; null: the model's.
  const ServedAdapter* coded() const { return begin > 0 ? nullptr : served.get(); }
};

}  // namespace aludel
