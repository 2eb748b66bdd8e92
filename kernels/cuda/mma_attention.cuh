#pragma once

#include "kernels/cuda/attention_args.h"
#include "kernels/cuda/mma_index.h"
#include "kernels/cuda/warp.cuh"

// Attention over bf16 pages on tensor cores (FlashAttention-2, Dao 2023). A block owns one tile of queries of
// one kv head and a run of keys; it gathers keys and values from the pages, a tile ahead of the products. Q
// is rounded to bf16, and so are probabilities for the second product, as on the CPU; scores, maxima and sums
// are f32. Bound by the products in prefill, by reading the pages in decode.
//
// Bodies only: the __global__ functions that name shared memory are in mma_attention_*.cu, and tests run the
// bodies on the host.
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
  // [queries | kStages of (keys, values)]
  static constexpr int kSharedBytes = kQueryBytes + kStages * 2 * kTileBytes;
  // What the warps' sums are joined in takes the place of keys and values.
  static_assert(kKeyWarps == 1 || kKeyWarps * kQueries * PartialStride(kDim) * 4 <= kStages * 2 * kTileBytes);
};

// 96 KiB at most: two blocks on a Hopper SM, one on every GPU since Ampere.
template <int kDim>
using PrefillShape = MmaShape<kDim, kDim <= 128 ? 2 : 1, 4, 1, kDim <= 128 ? 64 : 32>;
template <int kDim>
using DecodeShape = MmaShape<kDim, 1, 1, kDim <= 128 ? 4 : 2, 16>;

// Which query of the tile slot `i` is: rows outermost, so that positions never descend.
struct TileQuery {
  int64_t row;  // of the sequence's rows
  int head;     // of the group's heads
};
__device__ inline TileQuery TileQueryAt(const QueryTile& tile, int i) {
  return {tile.row_begin + i / tile.heads, tile.head_begin + i % tile.heads};
}

__device__ inline void StoreElement(const TensorView& view, int64_t at, float value) {
  if (view.dtype == DType::kF32) {
    Store(static_cast<float*>(view.data) + at, value);
  } else {
    Store(static_cast<Bf16*>(view.data) + at, value);
  }
}

// Eight elements as bf16.
__device__ inline uint4 LoadChunk(const TensorView& view, int64_t at) {
  float x[kChunkElements];
  if (view.dtype == DType::kF32) {
    const float* const from = static_cast<const float*>(view.data) + at;
#pragma unroll
    for (int i = 0; i < kChunkElements; ++i) x[i] = Load(from + i);
  } else {
    const Bf16* const from = static_cast<const Bf16*>(view.data) + at;
#pragma unroll
    for (int i = 0; i < kChunkElements; ++i) x[i] = Load(from + i);
  }
  return {PackBf16(x[0], x[1]), PackBf16(x[2], x[3]), PackBf16(x[4], x[5]), PackBf16(x[6], x[7])};
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

// Queries that the tile does not have, and dimensions that the head does not have, are zero.
template <typename Shape>
__device__ void LoadQueries(const AttentionArgs& args, const AttentionUnit& unit, char* shared) {
  for (int c = threadIdx.x; c < Shape::kQueries * Shape::kChunks; c += Shape::kThreads) {
    const int i = c / Shape::kChunks;
    const int chunk = c % Shape::kChunks;
    uint4 value = {0, 0, 0, 0};
    if (i < unit.count && chunk * kChunkElements < args.kv.head_dim) {
      value = LoadChunk(args.q, QueryElement(args.q, args, unit, i) + chunk * kChunkElements);
    }
    *reinterpret_cast<uint4*>(shared + SwizzledChunk<Shape::kDim>(i, chunk) * kChunkBytes) = value;
  }
}

// Begins to copy the keys and values at positions [begin, end) of [tile, tile + kKeys). The rest becomes
// zero: pages hold anything there, and 0 * NaN would be NaN. A warp copies whole rows; each of its lanes
// finds one row's page, and a shuffle tells the others.
template <typename Shape>
__device__ void LoadKeyTile(const KvPlanes& kv, const int32_t* blocks, int kv_head, int64_t tile,
                            int64_t begin, int64_t end, char* keys, char* values) {
  constexpr int kRows = Shape::kKeys / Shape::kWarps;
  static_assert(kRows <= 32 && kRows * Shape::kChunks % 32 == 0);
  const int lane = threadIdx.x % 32;
  const int first_row = threadIdx.x / 32 * kRows;
  long long page = -1;
  const int64_t position = tile + first_row + lane;
  if (lane < kRows && position >= begin && position < end) {
    // Positions are below 2^31, and 32-bit division is several times as fast.
    const auto narrow = static_cast<uint32_t>(position);
    const uint32_t index = narrow / static_cast<uint32_t>(kv.block_tokens);
    const uint32_t slot = narrow - index * static_cast<uint32_t>(kv.block_tokens);
    page =
        PageOffset(blocks[index], kv.kv_heads, kv_head, kv.block_tokens, static_cast<int>(slot), kv.head_dim);
  }
#pragma unroll
  for (int i = 0; i < kRows * Shape::kChunks / 32; ++i) {
    const int row = (i * 32 + lane) / Shape::kChunks;
    const int chunk = (i * 32 + lane) % Shape::kChunks;
    const long long from = __shfl_sync(kAllLanes, page, row);
    const bool there = from >= 0 && chunk * kChunkElements < kv.head_dim;
    const int64_t element = there ? from + chunk * kChunkElements : 0;
    const int at = SwizzledChunk<Shape::kDim>(first_row + row, chunk) * kChunkBytes;
    CpAsync16(keys + at, static_cast<const Bf16*>(kv.k) + element, there);
    CpAsync16(values + at, static_cast<const Bf16*>(kv.v) + element, there);
  }
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

// scores[r][n] [16, 8]: row tile r times keys [8 n, 8 n + 8) of the warp's. `queries` and `keys` are the
// block's; `query` and `key` count their rows to the warp's first.
template <typename Shape>
__device__ void Scores(const char* queries, int query, const char* keys, int key,
                       float (&scores)[Shape::kRowTiles][Shape::kWarpKeys / 8][4]) {
  const int lane = threadIdx.x % 32;
  const MatrixRow in_a = RowsThenChunks(lane);
  const MatrixRow in_b = ChunksThenRows(lane);
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
#pragma unroll
    for (int n = 0; n < Shape::kWarpKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[r][n][i] = 0.0f;
    }
  }
#pragma unroll
  for (int k = 0; k < Shape::kDim / 16; ++k) {
    uint32_t a[Shape::kRowTiles][4];
#pragma unroll
    for (int r = 0; r < Shape::kRowTiles; ++r) {
      LdMatrix(a[r], queries + kChunkBytes *
                                   SwizzledChunk<Shape::kDim>(query + r * 16 + in_a.row, k * 2 + in_a.chunk));
    }
#pragma unroll
    for (int n = 0; n < Shape::kWarpKeys / 16; ++n) {
      uint32_t b[4];
      LdMatrix(b,
               keys + kChunkBytes * SwizzledChunk<Shape::kDim>(key + n * 16 + in_b.row, k * 2 + in_b.chunk));
#pragma unroll
      for (int r = 0; r < Shape::kRowTiles; ++r) {
        Mma(scores[r][2 * n], a[r], b[0], b[1]);
        Mma(scores[r][2 * n + 1], a[r], b[2], b[3]);
      }
    }
  }
}

// Scores of keys that a query does not see become -inf. The warp's first key is at position `key`.
template <typename Shape>
__device__ void Mask(const WarpSums<Shape>& state, int64_t window, int key,
                     float (&scores)[Shape::kRowTiles][Shape::kWarpKeys / 8][4]) {
  const int column = AccumulatorColumn(threadIdx.x % 32);
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int last = state.position[r][half] - key - column;
      const int first = static_cast<int>(FirstVisible(state.position[r][half], window)) - key - column;
#pragma unroll
      for (int n = 0; n < Shape::kWarpKeys / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int at = n * 8 + i;
          if (at < first || at > last) scores[r][n][2 * half + i] = -INFINITY;
        }
      }
    }
  }
}

// Scores become probabilities relative to the running maximum, and what was gathered before has to be brought
// down to it by `correction` (Milakov & Gimelshein 2018), with 2^x for e^x: `scale` carries log2(e).
template <typename Shape>
__device__ void Soften(float scale, WarpSums<Shape>& state,
                       float (&scores)[Shape::kRowTiles][Shape::kWarpKeys / 8][4],
                       float (&correction)[Shape::kRowTiles][2]) {
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float maximum = state.maximum[r][half];
#pragma unroll
      for (int n = 0; n < Shape::kWarpKeys / 8; ++n) {
        maximum = fmaxf(maximum, fmaxf(scores[r][n][2 * half], scores[r][n][2 * half + 1]));
      }
      maximum = WarpMax(maximum, 4);
      // A query that has seen nothing yet: any number will do, but not -inf - -inf.
      const float base = maximum == -INFINITY ? 0.0f : maximum * scale;
      correction[r][half] = Exp2(state.maximum[r][half] * scale - base);
      float weight = 0.0f;
#pragma unroll
      for (int n = 0; n < Shape::kWarpKeys / 8; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[r][n][i] = Exp2(scores[r][n][i] * scale - base);
          weight += scores[r][n][i];
        }
      }
      state.maximum[r][half] = maximum;
      state.weight[r][half] = state.weight[r][half] * correction[r][half] + weight;
    }
  }
}

template <typename Shape>
__device__ void Rescale(const float (&correction)[Shape::kRowTiles][2], WarpSums<Shape>& state) {
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
#pragma unroll
    for (int d = 0; d < Shape::kDim / 8; ++d) {
#pragma unroll
      for (int i = 0; i < 4; ++i) state.sums[r][d][i] *= correction[r][i / 2];
    }
  }
}

// Two neighboring results of one product as the A of the next: mma_index.h says why they fit.
__device__ inline void PackOperand(const float (&low)[4], const float (&high)[4], uint32_t (&a)[4]) {
  a[0] = PackBf16(low[0], low[1]);
  a[1] = PackBf16(low[2], low[3]);
  a[2] = PackBf16(high[0], high[1]);
  a[3] = PackBf16(high[2], high[3]);
}

// sums += probabilities times values; `key` as in Scores.
template <typename Shape>
__device__ void AddValues(const float (&probabilities)[Shape::kRowTiles][Shape::kWarpKeys / 8][4],
                          const char* values, int key, WarpSums<Shape>& state) {
  const MatrixRow in_b = RowsThenChunks(threadIdx.x % 32);
#pragma unroll
  for (int k = 0; k < Shape::kWarpKeys / 16; ++k) {
    uint32_t a[Shape::kRowTiles][4];
#pragma unroll
    for (int r = 0; r < Shape::kRowTiles; ++r) {
      PackOperand(probabilities[r][2 * k], probabilities[r][2 * k + 1], a[r]);
    }
#pragma unroll
    for (int d = 0; d < Shape::kDim / 16; ++d) {
      uint32_t b[4];
      LdMatrixTransposed(
          b, values + kChunkBytes * SwizzledChunk<Shape::kDim>(key + k * 16 + in_b.row, d * 2 + in_b.chunk));
#pragma unroll
      for (int r = 0; r < Shape::kRowTiles; ++r) {
        Mma(state.sums[r][2 * d], a[r], b[0], b[1]);
        Mma(state.sums[r][2 * d + 1], a[r], b[2], b[3]);
      }
    }
  }
}

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
                                   float weight) {
  if (row.partial != nullptr) {
    row.partial[d] = sum;
  } else {
    StoreElement(args.out, row.out + d, sum / weight);
  }
}

// Maxima of partial results count in units of log2.
__device__ inline void StoreWeight(const ResultRow& row, int head_dim, float maximum, float weight) {
  if (row.partial == nullptr) return;
  row.partial[head_dim] = maximum;
  row.partial[head_dim + 1] = weight;
}

// One group of keys: a warp's sums are the block's.
template <typename Shape>
__device__ void StoreSums(const AttentionArgs& args, const AttentionUnit& unit, int64_t unit_index,
                          float scale, int first_query, const WarpSums<Shape>& state) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int r = 0; r < Shape::kRowTiles; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float weight = WarpSum(state.weight[r][half], 4);
      const int i = first_query + r * 16 + AccumulatorRow(lane, half);
      if (i >= unit.count) continue;
      const ResultRow row = ResultRowOf<Shape>(args, unit, unit_index, i);
#pragma unroll
      for (int d = 0; d < Shape::kDim / 8; ++d) {
        const int at = d * 8 + AccumulatorColumn(lane);
        if (at >= args.kv.head_dim) continue;
        StoreResult(args, row, at, state.sums[r][d][2 * half], weight);
        StoreResult(args, row, at + 1, state.sums[r][d][2 * half + 1], weight);
      }
      if (lane % 4 == 0) StoreWeight(row, args.kv.head_dim, state.maximum[r][half] * scale, weight);
    }
  }
}

// The weight of partial results with this maximum once `maximum` is the largest of all.
__device__ inline float Share(float own, float maximum) {
  return own == -INFINITY ? 0.0f : Exp2(own - maximum);
}

// Several groups of keys: their warps' sums are joined in shared memory. Begins with everyone past the last
// key tile.
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
      StoreResult(args, row, d, sum, weight);
    }
    if (lane == 0) StoreWeight(row, args.kv.head_dim, maximum, weight);
  }
}

// grid (units, kv_heads), Shape::kThreads threads, Shape::kSharedBytes at `shared`, 16-byte aligned. What the
// largest sequence's last tiles do takes longest, so blocks take units from the end.
template <typename Shape>
__device__ void AttendUnit(const AttentionArgs& args, char* shared) {
  char* const queries = shared;
  char* const stages = shared + Shape::kQueryBytes;  // [kStages][keys, values]
  const int warp = threadIdx.x / 32;
  const int query_warp = warp % Shape::kQueryWarps;
  const int first_key = warp / Shape::kQueryWarps * Shape::kWarpKeys;
  const int first_query = query_warp * Shape::kWarpQueries;
  constexpr float kLog2E = 1.44269504088896340736f;
  const float scale = args.scale * kLog2E;

  const int64_t unit_index = static_cast<int64_t>(gridDim.x) - 1 - blockIdx.x;
  if (unit_index >= args.work.first_unit[args.table.count]) return;
  const AttentionUnit unit = UnitAt(args, unit_index, blockIdx.y);
  const KeyRun run = KeysOf(unit.entry, unit.tile, args.window, Shape::kKeys, unit.splits,
                            *args.work.split_keys, unit.split);

  const auto load = [&](int64_t tile, int stage) {
    char* const keys = stages + stage * 2 * Shape::kTileBytes;
    LoadKeyTile<Shape>(args.kv, unit.blocks, unit.kv_head, tile, run.begin, run.end, keys,
                       keys + Shape::kTileBytes);
  };
  if (run.tile_begin < run.end) load(run.tile_begin, 0);
  CpAsyncCommit();
  LoadQueries<Shape>(args, unit, queries);

  WarpSums<Shape> state;
  Clear(unit, first_query, state);
  // The same for the whole warp. -1: it has no queries, so that every key lies beyond.
  const int first_position = PositionOf(unit, first_query);
  const int last_position =
      first_query < unit.count ? PositionOf(unit, first_query + Shape::kWarpQueries - 1) : -1;

  int stage = 0;
  for (int64_t tile = run.tile_begin; tile < run.end; tile += Shape::kKeys, stage ^= 1) {
    if (tile + Shape::kKeys < run.end) load(tile + Shape::kKeys, stage ^ 1);
    CpAsyncCommit();
    CpAsyncWait<1>();
    __syncthreads();  // this tile is everyone's
    const int key = static_cast<int>(tile) + first_key;
    const int end = key + Shape::kWarpKeys;
    if (key <= last_position && end > FirstVisible(first_position, args.window)) {
      const char* const keys = stages + stage * 2 * Shape::kTileBytes;
      float scores[Shape::kRowTiles][Shape::kWarpKeys / 8][4];
      Scores<Shape>(queries, first_query, keys, first_key, scores);
      if (end - 1 > first_position || key < FirstVisible(last_position, args.window)) {
        Mask<Shape>(state, args.window, key, scores);
      }
      float correction[Shape::kRowTiles][2];
      Soften<Shape>(scale, state, scores, correction);
      Rescale<Shape>(correction, state);
      AddValues<Shape>(scores, keys + Shape::kTileBytes, first_key, state);
    }
    __syncthreads();  // and may be overwritten
  }
  if constexpr (Shape::kKeyWarps == 1) {
    StoreSums<Shape>(args, unit, unit_index, scale, first_query, state);
  } else {
    CpAsyncWait<0>();
    JoinSums<Shape>(args, unit, unit_index, scale, state, reinterpret_cast<float*>(stages));
  }
}

// Joins the splits of one query. grid (tiles, kv_heads, the most queries that a tile has); `queries` is the
// capacity of a tile in `partial`.
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
  const int head_dim = args.kv.head_dim;
  const int64_t first = args.work.first_unit[sequence] + local * unit.splits;
  const int64_t next = static_cast<int64_t>(args.kv.kv_heads) * queries * PartialStride(head_dim);
  const float* const rows = args.partial + first * next +
                            (static_cast<int64_t>(unit.kv_head) * queries + i) * PartialStride(head_dim);
  float maximum = -INFINITY;
  for (int s = 0; s < unit.splits; ++s) maximum = fmaxf(maximum, rows[s * next + head_dim]);
  float weight = 0.0f;
  for (int s = 0; s < unit.splits; ++s) {
    weight += Share(rows[s * next + head_dim], maximum) * rows[s * next + head_dim + 1];
  }
  const int64_t out = QueryElement(args.out, args, unit, i);
  for (int d = threadIdx.x; d < head_dim; d += blockDim.x) {
    float sum = 0.0f;
    for (int s = 0; s < unit.splits; ++s) {
      sum += Share(rows[s * next + head_dim], maximum) * rows[s * next + d];
    }
    StoreElement(args.out, out + d, sum / weight);
  }
}

}  // namespace aludel::cuda
