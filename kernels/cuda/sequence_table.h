#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/launch.h"
#include "kernels/ops.h"

// Host arrays of an op on their way to its kernels. What cannot be staged is null, the error collected.
namespace aludel::cuda {

inline KvPlanes PlanesOf(const PagedKv& kv) {
  return {kv.k, kv.v, kv.dtype, kv.block_tokens, kv.kv_heads, kv.head_dim};
}

template <typename T>
const T* StageSpan(absl::Span<const T> values, CudaStream& stream) {
  return static_cast<const T*>(stream.Stage(values.data(), values.size() * sizeof(T)));
}

// The sequences as one blob [first tokens | entries | blocks]. It is the same bytes for every op of a step,
// so that the ring sends it once.
SequenceTable StageSequences(absl::Span<const SequenceRows> sequences, CudaStream& stream);

int64_t TotalRows(absl::Span<const SequenceRows> sequences);

// What the kernels take for granted: rows that exist and, with block_tokens > 0, blocks for every position.
void CheckSequences(absl::Span<const SequenceRows> sequences, int64_t rows, int block_tokens);

}  // namespace aludel::cuda
