#pragma once

#include <cstdint>

#include "kernels/tensor.h"

namespace aludel {

struct EngineOptions {
  // 0: enough for max_num_seqs full contexts, at most 1/4 of host memory, or 4/5 of what a GPU has free
  int64_t kv_blocks = 0;
  int block_tokens = 16;
  DType kv_dtype = DType::kBf16;
  int64_t max_context = 0;               // 0: the model's
  int64_t max_num_batched_tokens = 256;  // tokens of one step, prefill and decode together
  int max_num_seqs = 64;                 // running or waiting for frames
  int max_hedges = 0;                    // local prefills beside late handoffs at once
  bool prefix_cache = true;              // sequences share the blocks of what they begin with
  // Steps that only decode are taken twice before the first request, of each kind that a GPU remembers: start-up takes as
  // much longer, and no request waits for CUDA graphs to be made.
  bool warm_up_decoding = false;
};

// Priorities of requests go from -kMaxPriority to kMaxPriority; lower goes first.
constexpr int kMaxPriority = 16;

}  // namespace aludel
