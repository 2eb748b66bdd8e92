#pragma once

#include "kernels/cuda/attention/attention_args.h"
#include "kernels/cuda/attention/mma_index.h"
#include "kernels/cuda/attention/mma_result.cuh"
#include "kernels/cuda/attention/mma_unit.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/cuda/warp.cuh"

// Attention over pages of bf16 or FP8 on tensor cores (FlashAttention-2, Dao 2023). A block owns one tile of
// queries of one kv head and a run of keys; it gathers keys and values from the pages, a tile ahead of the
// products. Q is rounded to bf16, and so are probabilities for the second product, as on the CPU; scores, maxima
// and sums are f32. FP8 is copied as it is and becomes bf16 in shared memory. Bound by the products in prefill,
// by reading the pages in decode.
//
// Bodies only: the __global__ functions that name shared memory are in mma_attention_*.cu, and tests run the
// bodies on the host.
namespace aludel::cuda {

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

// The same, 16 bytes at once: of a view that HasChunks.
__device__ inline uint4 LoadWholeChunk(const float* from) {
  float x[kChunkElements];
  LoadVector(from, x);
  return {PackBf16(x[0], x[1]), PackBf16(x[2], x[3]), PackBf16(x[4], x[5]), PackBf16(x[6], x[7])};
}
__device__ inline uint4 LoadWholeChunk(const Bf16* from) { return *reinterpret_cast<const uint4*>(from); }

// Calls f with what loads the chunk at an element of the view.
template <typename F>
__device__ void WithChunks(const TensorView& view, const F& f) {
  if (!HasChunks(view)) {
    f([&view](int64_t at) { return LoadChunk(view, at); });
  } else if (view.dtype == DType::kF32) {
    f([from = static_cast<const float*>(view.data)](int64_t at) { return LoadWholeChunk(from + at); });
  } else {
    f([from = static_cast<const Bf16*>(view.data)](int64_t at) { return LoadWholeChunk(from + at); });
  }
}

// Queries that the tile does not have, and dimensions that the head does not have, are zero.
template <typename Shape>
__device__ void LoadQueries(const AttentionArgs& args, const AttentionUnit& unit, char* shared) {
  WithChunks(args.q, [&](const auto& load) {
    for (int c = threadIdx.x; c < Shape::kQueries * Shape::kChunks; c += Shape::kThreads) {
      const int i = c / Shape::kChunks;
      const int chunk = c % Shape::kChunks;
      uint4 value = {0, 0, 0, 0};
      if (i < unit.count && chunk * kChunkElements < args.kv.head_dim) {
        value = load(QueryElement(args.q, args, unit, i) + chunk * kChunkElements);
      }
      *reinterpret_cast<uint4*>(shared + SwizzledChunk<Shape::kDim>(i, chunk) * kChunkBytes) = value;
    }
  });
}

// How a block copies a tile of keys or values: a warp whole rows, a lane pieces of 16 bytes, its i-th at At(i).
template <typename Shape>
struct TilePieces {
  static constexpr int kElements = kChunkBytes / static_cast<int>(sizeof(typename Shape::Page));
  static constexpr int kOfRow = Shape::kDim / kElements;
  static constexpr int kRows = Shape::kKeys / Shape::kWarps;
  static constexpr int kSteps = kRows * kOfRow / 32;
  static_assert(kRows <= 32 && kRows * kOfRow % 32 == 0);

  struct Place {
    int row;    // of the warp's
    int piece;  // of the row
  };
  __device__ static Place At(int i) {
    const int index = i * 32 + static_cast<int>(threadIdx.x % 32);
    return {index / kOfRow, index % kOfRow};
  }
  __device__ static int FirstRow() { return static_cast<int>(threadIdx.x / 32) * kRows; }
  // Where it lies in shared memory. Of FP8 only the thread that has copied a piece reads it there.
  __device__ static int Offset(const Place& at) {
    if constexpr (std::is_same_v<typename Shape::Page, Fp8>) {
      return ((FirstRow() + at.row) * kOfRow + at.piece) * kChunkBytes;
    } else {
      return SwizzledChunk<Shape::kDim>(FirstRow() + at.row, at.piece) * kChunkBytes;
    }
  }
};

// Begins to copy the keys and values at positions [begin, end) of [tile, tile + kKeys). The rest becomes
// zero: pages hold anything there, and 0 * NaN would be NaN. Each lane finds one row's page, and a shuffle
// tells the others of its warp.
template <typename Shape>
__device__ void LoadKeyTile(const KvPlanes& kv, const int32_t* blocks, int kv_head, int64_t tile,
                            int64_t begin, int64_t end, char* keys, char* values) {
  using Pieces = TilePieces<Shape>;
  using Page = typename Shape::Page;
  const int lane = threadIdx.x % 32;
  long long page = -1;
  const int64_t position = tile + Pieces::FirstRow() + lane;
  if (lane < Pieces::kRows && position >= begin && position < end) {
    // Positions are below 2^31, and 32-bit division is several times as fast.
    const auto narrow = static_cast<uint32_t>(position);
    const uint32_t index = narrow / static_cast<uint32_t>(kv.block_tokens);
    const uint32_t slot = narrow - index * static_cast<uint32_t>(kv.block_tokens);
    page =
        PageOffset(blocks[index], kv.kv_heads, kv_head, kv.block_tokens, static_cast<int>(slot), kv.head_dim);
  }
#pragma unroll
  for (int i = 0; i < Pieces::kSteps; ++i) {
    const auto at = Pieces::At(i);
    const long long from = __shfl_sync(kAllLanes, page, at.row);
    const bool there = from >= 0 && at.piece * Pieces::kElements < kv.head_dim;
    const int64_t element = there ? from + at.piece * Pieces::kElements : 0;
    const int offset = Pieces::Offset(at);
    CpAsync16(keys + offset, static_cast<const Page*>(kv.k) + element, there);
    CpAsync16(values + offset, static_cast<const Page*>(kv.v) + element, there);
  }
}

// The pieces of a plane of FP8 that this thread has copied, and that have come, as bf16 in `tile`.
template <typename Shape>
__device__ void WidenPieces(const char* plane, char* tile) {
  using Pieces = TilePieces<Shape>;
#pragma unroll
  for (int i = 0; i < Pieces::kSteps; ++i) {
    const auto at = Pieces::At(i);
    const uint4 codes = *reinterpret_cast<const uint4*>(plane + Pieces::Offset(at));
    const int row = Pieces::FirstRow() + at.row;
    const auto chunk = [&](int half) {
      return reinterpret_cast<uint4*>(tile +
                                      SwizzledChunk<Shape::kDim>(row, 2 * at.piece + half) * kChunkBytes);
    };
    *chunk(0) = WidenFp8(codes.x, codes.y);
    *chunk(1) = WidenFp8(codes.z, codes.w);
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

// grid (units * kv_heads), Shape::kThreads threads, Shape::kSharedBytes at `shared`, 16-byte aligned.
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

  AllowNext();
  const AttentionPiece piece = PieceAt(args, gridDim.x / args.kv.kv_heads, blockIdx.x);
  const int64_t unit_index = piece.unit;
  if (unit_index >= args.work.first_unit[args.table.count]) return;
  const AttentionUnit unit = UnitAt(args, unit_index, piece.kv_head);
  const KeyRun run = KeysOf(unit.entry, unit.tile, args.window, Shape::kKeys, unit.splits,
                            *args.work.split_keys, unit.split);

  const auto load = [&](int64_t tile, int stage) {
    char* const keys = stages + stage * Shape::kStageBytes;
    LoadKeyTile<Shape>(args.kv, unit.blocks, unit.kv_head, tile, run.begin, run.end, keys,
                       keys + Shape::kStageBytes / 2);
  };
  // Keys and values of a stage that has come, as bf16.
  const auto widened = [&](const char* keys) {
    if constexpr (std::is_same_v<typename Shape::Page, Fp8>) {
      char* const wide = stages + Shape::kStages * Shape::kStageBytes;
      WidenPieces<Shape>(keys, wide);
      WidenPieces<Shape>(keys + Shape::kStageBytes / 2, wide + Shape::kTileBytes);
      return static_cast<const char*>(wide);
    } else {
      return keys;
    }
  };
  AwaitEarlier();  // tables are there since before the step: no kernel writes them
  if (run.tile_begin < run.end) load(run.tile_begin, 0);
  CpAsyncCommit();
  LoadQueries<Shape>(args, unit, queries);

  WarpSums<Shape> state;
  Clear(unit, first_query, state);
  // One value for the whole warp. -1: it has no queries, so that every key lies beyond.
  const int first_position = PositionOf(unit, first_query);
  const int last_position =
      first_query < unit.count ? PositionOf(unit, first_query + Shape::kWarpQueries - 1) : -1;

  int stage = 0;
  for (int64_t tile = run.tile_begin; tile < run.end; tile += Shape::kKeys, stage ^= 1) {
    if (tile + Shape::kKeys < run.end) load(tile + Shape::kKeys, stage ^ 1);
    CpAsyncCommit();
    CpAsyncWait<1>();
    const char* const keys = widened(stages + stage * Shape::kStageBytes);
    __syncthreads();  // all threads see this tile
    const int key = static_cast<int>(tile) + first_key;
    const int end = key + Shape::kWarpKeys;
    if (key <= last_position && end > FirstVisible(first_position, args.window)) {
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
    CombineWhereLast<Shape>(args, unit, unit_index, reinterpret_cast<uint32_t*>(queries));
  }
}

}  // namespace aludel::cuda
