#pragma once

#include "kernels/cuda/gemm/adapted_index.h"
#include "kernels/cuda/gemm/fused_gemm.cuh"
#include "kernels/cuda/grid_count.cuh"
#include "kernels/cuda/vector.cuh"

// Products of a decode step whose rows have adapters: y = W x + scale * B (A x), in one launch. Bound by reading W once, and A and B
// beside it. While its first weights are on their way a block takes sums of A x, one at a time, from what all blocks share until
// none is left; when its first tile is done, it waits for those of others, which have long been there, and each output takes
// their products with B. A sum is added up as by low_rank.cuh, and so is what B makes of it: a row is the same bits as
// there, and whatever other rows there are.
//
// Bodies only, see mma_attention.cuh.
namespace aludel::cuda {

// Every thread's part of x . a, both of `in` numbers and 16-byte aligned.
__device__ inline float AddedPart(const Bf16* x, const Bf16* a, int64_t in) {
  float sum = 0.0f;
#pragma unroll 4
  for (int64_t i = int64_t{threadIdx.x} * kVector; i < in; i += kSkinnyThreads * kVector) {
    float inputs[kVector], weights[kVector];
    LoadVector(a + i, weights);
    LoadVector(x + i, inputs);
#pragma unroll
    for (int j = 0; j < kVector; ++j) sum += inputs[j] * weights[j];
  }
  return sum;
}

// What MultiplyTiles' callers add of a batch's adapters, see NothingAdded.
struct AdaptersAdded {
  const AddedArgs& args;

  __device__ uint32_t Claim() const {
    // Each block's last one finds none left.
    return atomicInc(args.counters + kClaimed, static_cast<uint32_t>(args.sum_count) + gridDim.x - 1);
  }

  // Asks for what the tile takes of B: otherwise it came when the tile is done, and nothing else would be on its way.
  __device__ void AskForB(const int64_t (&first)[2]) const {
    const int half = static_cast<int>(threadIdx.x) % 2;
    for (int s = threadIdx.x / 32; s < args.first_slice[kFusedRows]; s += kSkinnyWarps) {
      const AddedSlice& slice = args.slices[s];
      const int64_t at = first[half] - slice.out_begin;
      if (at < 0 || at >= slice.outputs) continue;
      for (int k = threadIdx.x % 32 / 2; k < slice.rank; k += 16) {
        Prefetch(slice.b + k * LowRankStride(slice.outputs) + at);
      }
    }
  }

  __device__ void Begin(const SkinnyRows& x, float* scratch, const int64_t (&first)[2]) const {
    uint32_t* const claimed = reinterpret_cast<uint32_t*>(scratch + kSkinnyWarps);
    uint32_t next = threadIdx.x == 0 ? Claim() : 0;
    AskForB(first);
    while (true) {
      if (threadIdx.x == 0) *claimed = next;
      __syncthreads();
      const auto at = static_cast<int32_t>(*claimed);
      if (at >= args.sum_count) return;
      if (threadIdx.x == 0) next = Claim();
      const AddedSlice* slice = args.slices;
      while (at >= slice->first_sum + slice->rank) ++slice;
      const float part =
          AddedPart(x.data + slice->row * x.stride, slice->a + (at - slice->first_sum) * x.in, x.in);
      const float of_warp = WarpSum(part, 32);
      if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = of_warp;
      __syncthreads();  // and all know what was claimed
      if (threadIdx.x == 0) {
        float sum = 0.0f;
#pragma unroll
        for (int w = 0; w < kSkinnyWarps; ++w) sum += scratch[w];
        StoreCounted(args.sums + at, sum * slice->scale, args.counters + kDone);
      }
    }
  }

  __device__ void Await(int tile) const {
    if (tile != static_cast<int>(blockIdx.x)) return;  // it has, before its first
    if (threadIdx.x == 0) AwaitCount(args.counters + kDone, static_cast<uint32_t>(args.sum_count));
    __syncthreads();
  }

  __device__ float Of(int row, int64_t out) const {
    float total = 0.0f;
    for (int s = args.first_slice[row]; s < args.first_slice[row + 1]; ++s) {
      const AddedSlice& slice = args.slices[s];
      const int64_t at = out - slice.out_begin;
      if (at < 0 || at >= slice.outputs) continue;
      const Bf16* b = slice.b + at;
      const float* const sums = args.sums + slice.first_sum;
#pragma unroll 8
      for (int k = 0; k < slice.rank; ++k, b += LowRankStride(slice.outputs)) total += sums[k] * Load(b);
    }
    return total;
  }

  // Rounded as where the product is an operation of its own.
  template <typename Out>
  __device__ static float Sum(float product, float more) {
    return Rounded<Out>(product) + more;
  }

  // By all blocks, behind Await: the last one leaves the counters as they were.
  __device__ void End() const {
    if (threadIdx.x == 0 && atomicInc(args.counters + kLeft, gridDim.x - 1) == gridDim.x - 1) {
      args.counters[kDone] = 0;
    }
  }
};

}  // namespace aludel::cuda
