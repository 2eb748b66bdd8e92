#pragma once

#include "kernels/cuda/attention/attention_args.h"
#include "kernels/cuda/attention/mma_index.h"
#include "kernels/cuda/attention/mma_unit.cuh"
#include "kernels/cuda/warp.cuh"

// From the sums of warps to the output of an attention kernel: warps that share queries are joined in shared
// memory, splits of keys by a second kernel over partial results (flash-decoding, Dao et al. 2023).
//
// Bodies only, see mma_attention.cuh.
namespace aludel::cuda {

// Where one query of a unit puts its result: the output, or the unit's partial sums.
struct ResultRow {
  int64_t out;     // element
  float* partial;  // null: the output
};

template <typename Shape>
__device__ ResultRow ResultRowOf(const AttentionArgs& args, const AttentionUnit& unit, int64_t unit_index,
                                 int i) {
  if (unit.splits == 1) return {QueryElement(args.out, args, unit, i), nullptr};
  const int64_t slot = (unit_index * args.kv.kv_heads + unit.kv_head) * Shape::kQueries + i;
  return {0, args.partial + slot * PartialStride(args.kv.head_dim)};
}

__device__ inline void StoreResult(const AttentionArgs& args, const ResultRow& row, int d, float sum,
                                   float inverse_weight) {
  if (row.partial != nullptr) {
    row.partial[d] = sum;
  } else {
    StoreElement(args.out, row.out + d, sum * inverse_weight);
  }
}

// Maxima of partial results count in units of log2.
__device__ inline void StoreWeight(const ResultRow& row, int head_dim, float maximum, float weight) {
  if (row.partial == nullptr) return;
  row.partial[head_dim] = maximum;
  row.partial[head_dim + 1] = weight;
}

// Words of a quad of lanes turned over: lane q's word i becomes lane i's word q.
__device__ inline void TurnQuad(uint32_t (&words)[4]) {
  const bool odd = threadIdx.x % 2 != 0;
#pragma unroll
  for (int i = 0; i < 4; i += 2) {
    const uint32_t theirs = __shfl_xor_sync(kAllLanes, odd ? words[i] : words[i + 1], 1);
    words[i] = odd ? theirs : words[i];
    words[i + 1] = odd ? words[i + 1] : theirs;
  }
  const bool high = threadIdx.x % 4 >= 2;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint32_t theirs = __shfl_xor_sync(kAllLanes, high ? words[i] : words[i + 2], 2);
    words[i] = high ? theirs : words[i];
    words[i + 2] = high ? words[i + 2] : theirs;
  }
}

// What StoreSums does where the result is the output, of bf16, and whole chunks lie on 16 bytes: the lanes of a quad have two
// neighboring dimensions of each chunk of their row, and store a chunk each.
template <typename Shape>
__device__ void StoreChunks(const AttentionArgs& args, const AttentionUnit& unit, int first_query,
                            const WarpSums<Shape>& state) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float inverse_weight = 1.0f / WarpSum(state.weight[r][half], 4);
      const int i = first_query + r * 16 + AccumulatorRow(lane, half);
      Bf16* const row = static_cast<Bf16*>(args.out.data) +
                        QueryElement(args.out, args, unit, i < unit.count ? i : unit.count - 1);
#pragma unroll
      for (int d = 0; d < Shape::kDim / 8; d += 4) {
        uint32_t words[4];
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          words[j] = PackBf16(state.sums[r][d + j][2 * half] * inverse_weight,
                              state.sums[r][d + j][2 * half + 1] * inverse_weight);
        }
        TurnQuad(words);
        const int at = (d + lane % 4) * kChunkElements;
        if (i < unit.count && at < args.kv.head_dim) {
          *reinterpret_cast<uint4*>(row + at) = uint4{words[0], words[1], words[2], words[3]};
        }
      }
    }
  }
}

// One group of keys: a warp's sums are the block's.
template <typename Shape>
__device__ void StoreSums(const AttentionArgs& args, const AttentionUnit& unit, int64_t unit_index,
                          float scale, int first_query, const WarpSums<Shape>& state) {
  if (unit.splits == 1 && args.out.dtype == DType::kBf16 && HasChunks(args.out)) {
    return StoreChunks<Shape>(args, unit, first_query, state);
  }
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float weight = WarpSum(state.weight[r][half], 4);
      const int i = first_query + r * 16 + AccumulatorRow(lane, half);
      if (i >= unit.count) continue;
      const ResultRow row = ResultRowOf<Shape>(args, unit, unit_index, i);
      const float inverse_weight = 1.0f / weight;
#pragma unroll
      for (int d = 0; d < Shape::kDim / 8; ++d) {
        const int at = d * 8 + AccumulatorColumn(lane);
        if (at >= args.kv.head_dim) continue;
        StoreResult(args, row, at, state.sums[r][d][2 * half], inverse_weight);
        StoreResult(args, row, at + 1, state.sums[r][d][2 * half + 1], inverse_weight);
      }
      if (lane % 4 == 0) StoreWeight(row, args.kv.head_dim, state.maximum[r][half] * scale, weight);
    }
  }
}

// The weight of partial results with this maximum once `maximum` is the largest of all.
__device__ inline float Share(float own, float maximum) {
  return own == -INFINITY ? 0.0f : Exp2(own - maximum);
}

// Several groups of keys: their warps' sums are joined in shared memory. All
// threads have passed the last key tile.
template <typename Shape>
__device__ void JoinSums(const AttentionArgs& args, const AttentionUnit& unit, int64_t unit_index,
                         float scale, const WarpSums<Shape>& state, float* shared) {
  static_assert(Shape::kQueryWarps == 1);
  constexpr int kStride = PartialStride(Shape::kDim);  // [kKeyWarps, kQueries, kStride]
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float weight = WarpSum(state.weight[r][half], 4);
      const int i = r * 16 + AccumulatorRow(lane, half);
      if (i >= unit.count) continue;
      float* const row = shared + (threadIdx.x / 32 * Shape::kQueries + i) * kStride;
#pragma unroll
      for (int d = 0; d < Shape::kDim / 8; ++d) {
        const int at = d * 8 + AccumulatorColumn(lane);
        row[at] = state.sums[r][d][2 * half];
        row[at + 1] = state.sums[r][d][2 * half + 1];
      }
      if (lane % 4 == 0) {
        row[Shape::kDim] = state.maximum[r][half] * scale;
        row[Shape::kDim + 1] = weight;
      }
    }
  }
  __syncthreads();
  for (int i = threadIdx.x / 32; i < unit.count; i += Shape::kWarps) {
    const float* const rows = shared + i * kStride;
    constexpr int kNext = Shape::kQueries * kStride;  // the same query of the next warp
    float maximum = -INFINITY;
#pragma unroll
    for (int w = 0; w < Shape::kKeyWarps; ++w) maximum = fmaxf(maximum, rows[w * kNext + Shape::kDim]);
    float share[Shape::kKeyWarps];
    float weight = 0.0f;
#pragma unroll
    for (int w = 0; w < Shape::kKeyWarps; ++w) {
      share[w] = Share(rows[w * kNext + Shape::kDim], maximum);
      weight += share[w] * rows[w * kNext + Shape::kDim + 1];
    }
    const ResultRow row = ResultRowOf<Shape>(args, unit, unit_index, i);
    for (int d = lane; d < args.kv.head_dim; d += 32) {
      float sum = 0.0f;
#pragma unroll
      for (int w = 0; w < Shape::kKeyWarps; ++w) sum += share[w] * rows[w * kNext + d];
      StoreResult(args, row, d, sum, 1.0f / weight);
    }
    if (lane == 0) StoreWeight(row, args.kv.head_dim, maximum, weight);
  }
}

// Joins the splits of query i of a tile, by `threads` threads of which this is the `thread`th. `rows`: the query's place in
// the first split's results, `next` to that in the next one's.
__device__ inline void JoinQuery(const AttentionArgs& args, const AttentionUnit& unit, int i,
                                 const float* rows, int64_t next, int thread, int threads) {
  const int head_dim = args.kv.head_dim;
  float maximum = -INFINITY;
  for (int s = 0; s < unit.splits; ++s) maximum = fmaxf(maximum, rows[s * next + head_dim]);
  float weight = 0.0f;
  for (int s = 0; s < unit.splits; ++s) {
    weight += Share(rows[s * next + head_dim], maximum) * rows[s * next + head_dim + 1];
  }
  const int64_t out = QueryElement(args.out, args, unit, i);
  for (int d = thread; d < head_dim; d += threads) {
    float sum = 0.0f;
    for (int s = 0; s < unit.splits; ++s) {
      sum += Share(rows[s * next + head_dim], maximum) * rows[s * next + d];
    }
    StoreElement(args.out, out + d, sum / weight);
  }
}

// grid (tiles, kv_heads, the most queries that a tile has); `queries` is the capacity of a tile in `partial`.
__device__ inline void CombineSplits(const AttentionArgs& args, int queries) {
  const int64_t tile_index = blockIdx.x;
  const int i = blockIdx.z;
  const int sequence = FindInterval(args.work.first_tile, args.table.count, tile_index);
  AttentionUnit unit;
  unit.entry = args.table.entries[sequence];
  unit.splits = static_cast<int>(args.work.splits[sequence]);
  unit.kv_head = blockIdx.y;
  const int64_t local = tile_index - args.work.first_tile[sequence];
  unit.tile = TileAt(args.work.tiling, unit.entry.rows, local);
  unit.count = unit.tile.rows * unit.tile.heads;
  if (unit.splits == 1 || i >= unit.count) return;
  const int64_t stride = PartialStride(args.kv.head_dim);
  const int64_t first = args.work.first_unit[sequence] + local * unit.splits;
  const int64_t next = static_cast<int64_t>(args.kv.kv_heads) * queries * stride;
  JoinQuery(args, unit, i,
            args.partial + first * next + (static_cast<int64_t>(unit.kv_head) * queries + i) * stride, next,
            threadIdx.x, blockDim.x);
}

// Behind the results of a unit: where those of all splits of its tile are there, joins them, a query by each warp. `last`
// is shared.
template <typename Shape>
__device__ void CombineWhereLast(const AttentionArgs& args, const AttentionUnit& unit, int64_t unit_index,
                                 uint32_t* last) {
  if (args.arrived == nullptr || unit.splits == 1) return;
  const int sequence = FindInterval(args.work.first_unit, args.table.count, unit_index);
  const int64_t local = (unit_index - args.work.first_unit[sequence]) / unit.splits;
  __threadfence();  // what this thread has stored, before the block is counted
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t* const arrived =
        args.arrived + (args.work.first_tile[sequence] + local) * args.kv.kv_heads + unit.kv_head;
    *last = atomicAdd(arrived, 1u) + 1 == static_cast<uint32_t>(unit.splits) ? 1 : 0;
    if (*last != 0) *arrived = 0;  // for the next launch
  }
  __syncthreads();
  if (*last == 0) return;
  __threadfence();  // and before what others have stored is read
  const int64_t stride = PartialStride(args.kv.head_dim);
  const int64_t next = static_cast<int64_t>(args.kv.kv_heads) * Shape::kQueries * stride;
  const int64_t first = args.work.first_unit[sequence] + local * unit.splits;
  for (int i = threadIdx.x / 32; i < unit.count; i += Shape::kWarps) {
    const int64_t query = static_cast<int64_t>(unit.kv_head) * Shape::kQueries + i;
    JoinQuery(args, unit, i, args.partial + first * next + query * stride, next, threadIdx.x % 32, 32);
  }
}

}  // namespace aludel::cuda
