#pragma once

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/gemm/adapted_index.h"
#include "kernels/ops.h"

namespace aludel::cuda {

// Updates of a matrix with so many outputs. In a launch that makes several products, each one's outputs stand behind those of
// the one before it.
struct StackedUpdates {
  absl::Span<const LowRankRows> groups;
  int64_t outputs = 0;
};

// What the updates of kFusedRows rows at most, of `in` inputs of bf16, add to one launch on `stream`; of no sums where there are none.
// Nothing where there are more than kMostSlices, which what LayerInput and LayerGate may hold are not.
std::optional<AddedArgs> SliceUpdates(absl::Span<const StackedUpdates> stack, int64_t rows, int64_t in,
                                      const CudaStream& stream);

}  // namespace aludel::cuda
