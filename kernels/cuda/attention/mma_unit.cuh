#pragma once

#include "kernels/cuda/attention/attention_args.h"
#include "kernels/cuda/attention/mma_index.h"
#include "kernels/cuda/kv_page.cuh"
#include "kernels/cuda/warp.cuh"

// What a block of the tensor cores' attention kernels works on, and what its warps have gathered: the shape of
// its tiles, its queries and their places. mma_attention.cuh tells the rest.
namespace aludel::cuda {

// kRowTiles * 16 queries per warp, kQueryWarps such groups of queries, and kKeyWarps groups of kWarpKeys keys
// of each key tile: prefill has many queries and one group of keys, decode the reverse. A second row tile
// halves the reads of shared memory per product, which bind before the tensor cores do.
template <int kDim_, int kRowTiles_, int kQueryWarps_, int kKeyWarps_, int kWarpKeys_>
struct MmaShape {
  static constexpr int kDim = kDim_;  // head_dim, filled up with zeros
  static constexpr int kRowTiles = kRowTiles_;
  static constexpr int kQueryWarps = kQueryWarps_;
  static constexpr int kKeyWarps = kKeyWarps_;
  static constexpr int kWarpKeys = kWarpKeys_;

  static constexpr int kChunks = kDim / kChunkElements;
  static constexpr int kWarpQueries = kRowTiles * 16;
  static constexpr int kQueries = kQueryWarps * kWarpQueries;
  static constexpr int kKeys = kKeyWarps * kWarpKeys;
  static constexpr int kWarps = kQueryWarps * kKeyWarps;
  static constexpr int kThreads = kWarps * 32;
  static constexpr int kQueryBytes = kQueries * kDim * 2;
  static constexpr int kTileBytes = kKeys * kDim * 2;
  static constexpr int kStages = 2;
  using Page = Bf16;                                  // of the cache
  static constexpr int kStageBytes = 2 * kTileBytes;  // keys and values as pages hold them
  // [queries | kStages of (keys, values)]
  static constexpr int kSharedBytes = kQueryBytes + kStages * kStageBytes;
  // What the warps' sums are joined in takes the place of keys and values.
  static_assert(kKeyWarps == 1 || kKeyWarps * kQueries * PartialStride(kDim) * 4 <= kStages * 2 * kTileBytes);
};

// 96 KiB at most: two blocks on a Hopper SM, one on every GPU since Ampere.
template <int kDim>
using PrefillShape = MmaShape<kDim, kDim <= 128 ? 2 : 1, 4, 1, kDim <= 128 ? 64 : 32>;
template <int kDim>
using DecodeShape = MmaShape<kDim, 1, 1, kDim <= 128 ? 4 : 2, 16>;

// The same over pages of FP8: a stage holds their bytes, and each thread widens what it has copied into the one tile
// that products read, behind the stages.
template <typename Shape>
struct OverFp8 : Shape {
  using Page = Fp8;
  static constexpr int kStageBytes = Shape::kTileBytes;
  static_assert(Shape::kStages * kStageBytes + 2 * Shape::kTileBytes == Shape::kStages * Shape::kStageBytes);
};

// Which query of the tile slot `i` is: rows outermost, so that positions never descend.
struct TileQuery {
  int64_t row;  // of the sequence's rows
  int head;     // of the group's heads
};
__device__ inline TileQuery TileQueryAt(const QueryTile& tile, int i) {
  return {tile.row_begin + i / tile.heads, tile.head_begin + i % tile.heads};
}

// Whether chunks of a row's heads begin at multiples of 16 bytes, where head sizes are whole chunks.
__device__ inline bool HasChunks(const TensorView& view) {
  return view.stride % kChunkElements == 0 && reinterpret_cast<uintptr_t>(view.data) % kChunkBytes == 0;
}

__device__ inline void StoreElement(const TensorView& view, int64_t at, float value) {
  if (view.dtype == DType::kF32) {
    Store(static_cast<float*>(view.data) + at, value);
  } else {
    Store(static_cast<Bf16*>(view.data) + at, value);
  }
}

// What a block works on.
struct AttentionUnit {
  SequenceEntry entry;
  QueryTile tile;
  int kv_head;
  int count;   // queries of the tile
  int splits;  // of the tile's keys
  int split;   // which of them
  const int32_t* blocks;
};

__device__ inline AttentionUnit UnitAt(const AttentionArgs& args, int64_t index, int kv_head) {
  const int sequence = FindInterval(args.work.first_unit, args.table.count, index);
  AttentionUnit unit;
  unit.entry = args.table.entries[sequence];
  unit.splits = static_cast<int>(args.work.splits[sequence]);
  unit.kv_head = kv_head;
  const int64_t local = index - args.work.first_unit[sequence];
  unit.split = static_cast<int>(local % unit.splits);
  unit.tile = TileAt(args.work.tiling, unit.entry.rows, local / unit.splits);
  unit.count = unit.tile.rows * unit.tile.heads;
  unit.blocks = args.table.blocks + unit.entry.block_begin;
  return unit;
}

// A unit of one kv head.
struct AttentionPiece {
  int64_t unit;
  int kv_head;
};
// Those of `units` units in the order in which they are begun: from the end, as what the last tiles of a sequence do takes
// longest, and of all heads alike. Fewer than 2^31.
__device__ inline AttentionPiece PieceAt(const AttentionArgs& args, int64_t units, unsigned index) {
  const auto kv_heads = static_cast<unsigned>(args.kv.kv_heads);
  return {units - 1 - index / kv_heads, static_cast<int>(index % kv_heads)};
}

// Of query slot i; slots behind the last query are where it is.
__device__ inline int PositionOf(const AttentionUnit& unit, int i) {
  const int64_t row = TileQueryAt(unit.tile, i < unit.count ? i : unit.count - 1).row;
  return static_cast<int>(unit.entry.position_begin + row);
}

__device__ inline int64_t QueryElement(const TensorView& view, const AttentionArgs& args,
                                       const AttentionUnit& unit, int i) {
  const TileQuery query = TileQueryAt(unit.tile, i);
  return (unit.entry.row_begin + query.row) * view.stride +
         static_cast<int64_t>(unit.kv_head * args.work.tiling.group + query.head) * args.kv.head_dim;
}

// A warp's queries and what they have gathered so far. Half h of row tile r holds query
// r * 16 + AccumulatorRow(lane, h) of the warp's.
template <typename Shape>
struct WarpSums {
  float sums[Shape::kRowTiles][Shape::kDim / 8][4];
  float maximum[Shape::kRowTiles][2];  // of the scores, before they are scaled
  float weight[Shape::kRowTiles][2];   // this lane's share of the sum of probabilities
  int position[Shape::kRowTiles][2];
};

template <typename Shape>
__device__ void Clear(const AttentionUnit& unit, int first_query, WarpSums<Shape>& state) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      state.position[r][half] = PositionOf(unit, first_query + r * 16 + AccumulatorRow(lane, half));
      state.maximum[r][half] = -INFINITY;
      state.weight[r][half] = 0.0f;
    }
#pragma unroll
    for (int d = 0; d < Shape::kDim / 8; ++d) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state.sums[r][d][i] = 0.0f;
    }
  }
}

}  // namespace aludel::cuda
