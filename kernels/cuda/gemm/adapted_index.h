#pragma once

#include <cstdint>

#include "kernels/cuda/gemm/fused_args.h"
#include "kernels/cuda/gemm/low_rank_index.h"

// What the adapters of a batch of few rows add to a product in its own launch, for adapted_gemm.cuh. It is passed by value:
// no table has to reach the device before each product.
namespace aludel::cuda {

// Of a layer's product, at most: queries, keys and values have each an update.
constexpr int kMostSlicesOfRow = 3;
constexpr int kMostSlices = kFusedRows * kMostSlicesOfRow;

// Outputs [out_begin, out_begin + outputs) of `row` get scale * B A x.
struct AddedSlice {
  const Bf16* a;      // [rank, in]
  const Bf16* b;      // [rank, LowRankStride(outputs)]
  float scale;        //
  int32_t rank;       //
  int32_t out_begin;  //
  int32_t outputs;    //
  int32_t row;        // of the batch
  int32_t first_sum;  // of the launch's sums: slice by slice, [rank]
};

// Words of CudaStream::counters, each in a line of memory of its own.
constexpr int kClaimed = 0, kDone = 32, kLeft = 64;

struct AddedArgs {
  AddedSlice slices[kMostSlices];
  int32_t first_slice[kFusedRows + 1];  // row r has slices [first_slice[r], first_slice[r + 1])
  int32_t sum_count;                    // of all slices, at least one
  float* sums;                          // [sum_count]
  uint32_t* counters;                   // zeros before and behind the launch
};

}  // namespace aludel::cuda
