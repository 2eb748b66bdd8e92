#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/ops.h"

namespace aludel {

using BlockId = int32_t;

// The shape of a paged KV cache: one device allocation, for every layer a key plane and a value plane, each
// [blocks, kv_heads, block_tokens, head_dim].
struct KvLayout {
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int block_tokens = 16;
  int64_t blocks = 0;
  DType dtype = DType::kBf16;

  int kv_dim() const { return kv_heads * head_dim; }
  // Bytes of K and V of one token over all layers; of bf16, what `raw` has to ship.
  size_t bytes_per_token() const { return size_t{2} * layers * kv_dim() * SizeOf(dtype); }
  size_t plane_bytes() const { return static_cast<size_t>(blocks) * block_tokens * kv_dim() * SizeOf(dtype); }
  size_t total_bytes() const { return 2 * plane_bytes() * layers; }
  int64_t BlocksFor(int64_t tokens) const { return (tokens + block_tokens - 1) / block_tokens; }

  PagedKv Layer(void* base, int layer) const {
    char* planes = static_cast<char*>(base) + size_t{2} * layer * plane_bytes();
    return {planes, planes + plane_bytes(), dtype, block_tokens, kv_heads, head_dim};
  }
};

}  // namespace aludel
