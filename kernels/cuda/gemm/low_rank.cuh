#pragma once

#include "kernels/cuda/gemm/low_rank_index.h"
#include "kernels/cuda/vector.cuh"
#include "kernels/cuda/warp.cuh"

// What the adapters of a batch add to one product, whichever rows have which: two launches, however many adapters there
// are. Bound by reading A and B where few rows have the same adapter, so that a tile of rows shares what a block
// reads, and a tile of one row keeps only that one's sums. Every row's sums are added up in the same order, whatever
// tile it is in. On plain arithmetic: x A^T is not rounded to what tensor cores take.
//
// Bodies only, see mma_attention.cuh.
namespace aludel::cuda {

// Elements [0, kVector) at p, of which `left` are there; zeros behind them.
template <bool kVectors, typename T>
__device__ inline void LoadRun(const T* p, int64_t left, float (&x)[kVector]) {
  if constexpr (kVectors) {
    LoadVector(p, x);
  } else {
#pragma unroll
    for (int i = 0; i < kVector; ++i) x[i] = i < left ? Load(p + i) : 0.0f;
  }
}

template <typename T, bool kVectors, int kRows>
__device__ void ShrinkRows(const LowRankArgs& args, const LowRankTile& tile, int first, float* shared) {
  const int64_t in = args.x.cols;
  const T* a[kLowRankRanks];
  const T* x[kRows];
  // Beyond the last, that one again: its sums are not stored.
#pragma unroll
  for (int k = 0; k < kLowRankRanks; ++k) {
    const int rank = first + k < tile.update.rank ? first + k : tile.update.rank - 1;
    a[k] = static_cast<const T*>(tile.update.a) + rank * in;
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    x[r] =
        static_cast<const T*>(args.x.data) + tile.rows[r < tile.count ? r : tile.count - 1] * args.x.stride;
  }
  float sums[kRows][kLowRankRanks] = {};
  for (int64_t i = int64_t{threadIdx.x} * kVector; i < in; i += kShrinkThreads * kVector) {
    float weights[kLowRankRanks][kVector];
#pragma unroll
    for (int k = 0; k < kLowRankRanks; ++k) LoadRun<kVectors>(a[k] + i, in - i, weights[k]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float inputs[kVector];
      LoadRun<kVectors>(x[r] + i, in - i, inputs);
#pragma unroll
      for (int k = 0; k < kLowRankRanks; ++k) {
#pragma unroll
        for (int j = 0; j < kVector; ++j) sums[r][k] += inputs[j] * weights[k][j];
      }
    }
  }
  const int warp = threadIdx.x / 32;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
#pragma unroll
    for (int k = 0; k < kLowRankRanks; ++k) {
      const float sum = WarpSum(sums[r][k], 32);
      if (threadIdx.x % 32 == 0) shared[(warp * kRows + r) * kLowRankRanks + k] = sum;
    }
  }
  __syncthreads();
  const int r = threadIdx.x / kLowRankRanks;
  const int rank = first + threadIdx.x % kLowRankRanks;
  if (r >= tile.count || rank >= tile.update.rank) return;
  float sum = 0.0f;
#pragma unroll
  for (int w = 0; w < kShrinkThreads / 32; ++w) sum += shared[w * kRows * kLowRankRanks + threadIdx.x];
  args.sums[tile.sums + int64_t{r} * tile.update.rank + rank] = sum * tile.update.scales[rank];
}

// grid (tiles, ranks of the largest update / kLowRankRanks), kShrinkThreads threads, kShrinkSharedBytes at `shared`.
// kVectors: x can be read so, and each row of A.
template <typename T, bool kVectors>
__device__ void ShrinkTile(const LowRankArgs& args, float* shared) {
  const LowRankTile& tile = args.tiles[blockIdx.x];
  const int first = static_cast<int>(blockIdx.y) * kLowRankRanks;
  if (first >= tile.update.rank) return;
  if (tile.count == 1) {
    ShrinkRows<T, kVectors, 1>(args, tile, first, shared);
  } else {
    ShrinkRows<T, kVectors, kLowRankRows>(args, tile, first, shared);
  }
}

__device__ inline void LoadPair(const float* p, float (&x)[2]) { x[0] = p[0], x[1] = p[1]; }
__device__ inline void LoadPair(const Bf16* p, float (&x)[2]) {
  const uint32_t bits = *reinterpret_cast<const uint32_t*>(p);
  x[0] = __uint_as_float(bits << 16);
  x[1] = __uint_as_float(bits & 0xffff0000u);
}

// Outputs [at, at + 2) of a span for each thread.
template <typename T, typename Out, int kRows>
__device__ void ExpandRows(const LowRankArgs& args, const LowRankTile& tile, const LowRankSpan& span,
                           int64_t at, float* shared) {
  const int64_t stride = LowRankStride(span.outputs);
  const T* b = static_cast<const T*>(tile.update.b) + span.b + at;
  float total[kRows][2] = {};
  for (int begin = 0; begin < span.rank; begin += kLowRankSumsAtOnce) {
    const int ranks = span.rank - begin < kLowRankSumsAtOnce ? span.rank - begin : kLowRankSumsAtOnce;
    if (begin > 0) __syncthreads();
    for (int i = threadIdx.x; i < ranks * kRows; i += kExpandThreads) {
      const int r = i % kRows < tile.count ? i % kRows : tile.count - 1;
      shared[i] = args.sums[tile.sums + int64_t{r} * tile.update.rank + span.rank_begin + begin + i / kRows];
    }
    __syncthreads();
    if (at >= span.outputs) continue;
#pragma unroll 4
    for (int k = 0; k < ranks; ++k, b += stride) {
      float weights[2];
      LoadPair(b, weights);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        total[r][0] += shared[k * kRows + r] * weights[0];
        total[r][1] += shared[k * kRows + r] * weights[1];
      }
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= tile.count) break;
    Out* const to = static_cast<Out*>(args.out.data) + tile.rows[r] * args.out.stride + span.out_begin + at;
    if (at < span.outputs) Store(to, Load(to) + total[r][0]);
    if (at + 1 < span.outputs) Store(to + 1, Load(to + 1) + total[r][1]);
  }
}

// Behind ShrinkTile: grid (tiles, out_tiles of the largest update), kExpandThreads threads, kExpandSharedBytes.
template <typename T, typename Out>
__device__ void ExpandTile(const LowRankArgs& args, float* shared) {
  const LowRankTile& tile = args.tiles[blockIdx.x];
  int64_t index = blockIdx.y;
  for (int s = 0; s < tile.update.span_count; ++s) {
    const LowRankSpan& span = tile.update.spans[s];
    const int64_t tiles = LowRankOutTiles(span.outputs);
    if (index >= tiles) {
      index -= tiles;
      continue;
    }
    const int64_t at = index * kLowRankOuts + int64_t{threadIdx.x} * 2;
    if (tile.count == 1) {
      ExpandRows<T, Out, 1>(args, tile, span, at, shared);
    } else {
      ExpandRows<T, Out, kLowRankRows>(args, tile, span, at, shared);
    }
    return;
  }
}

}  // namespace aludel::cuda
