#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "runtime/kv/block_pool.h"
#include "runtime/model/transformer.h"

namespace aludel {

// Where the model's device remembers steps that only decode: makes the room for logits that steps of up to `sequences` sequences
// want, elsewhere nothing. To be called before a KV cache takes its share of what is free; a step that makes the room later loses
// all that is remembered. The model must be idle.
absl::Status ReserveForDecoding(Transformer& model, int64_t sequences);

// Where the model's device remembers steps that only decode: takes each kind of them that up to `sequences` sequences of up to
// `context` tokens will ask for, twice, so that it is remembered before the first request and no step waits for that. Elsewhere
// nothing. What a step computes goes into the pool's padding. Takes two steps for each size of a batch, stretch of positions, and
// way of choosing tokens (a hundred with 64 sequences of 128k tokens). The model must be idle.
absl::Status WarmUpDecoding(Transformer& model, BlockPool& pool, int64_t sequences, int64_t context);

}  // namespace aludel
