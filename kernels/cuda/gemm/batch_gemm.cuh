#pragma once

#include "kernels/cuda/gemm/batch_index.h"
#include "kernels/cuda/warp.cuh"

// Products of 9 to 64 rows of `a` with W, both of bf16, as decode steps of many sequences make them: bound by reading W once. W comes
// by asynchronous copies, three steps ahead of the products, `a` from the cache beside it. W is the left factor of mma: a warp
// has 32 outputs, with all rows, so that what it reads of `a` from shared memory serves two tiles of outputs. As in
// skinny_gemm.cuh a lane takes inputs that lie side by side, 16 bytes at once, for the places that the instruction gives it.
// batch_index.h says which block has what.
//
// Bodies only, see mma_attention.cuh.
namespace aludel::cuda {

constexpr int kBatchWarps = 4;
constexpr int kBatchThreads = kBatchWarps * 32;
constexpr int kBatchStages = 4;
constexpr int kBatchWarpOuts = kBatchOuts / kBatchWarps;
constexpr int kBatchOutTiles = kBatchWarpOuts / 16;  // of a warp

ALUDEL_HOST_DEVICE constexpr int BatchStageBytes(int row_tiles) {
  return (kBatchOuts + row_tiles * 8) * kBatchRowBytes;
}
// Of stages, each [kBatchOuts of W | row_tiles * 8 of `a`, kBatchRowBytes], and a word behind them: 96 KiB at most, for two blocks
// on a Hopper SM.
ALUDEL_HOST_DEVICE constexpr int BatchSharedBytes(int row_tiles) {
  return kBatchStages * BatchStageBytes(row_tiles) + 16;
}

// A lane's sums of a tile: sums[m][n][i] is output m * 16 + i / 2 * 8 + lane / 4 of its warp, row n * 8 + lane % 4 * 2 + i % 2.
template <int kRowTiles>
struct BatchSums {
  float sums[kBatchOutTiles][kRowTiles][4];
};

struct BatchPlace {
  int tile, step;

  __device__ BatchPlace(const BatchCut& cut, int at) : tile(at / cut.steps), step(at % cut.steps) {}
  __device__ void Advance(int steps) {
    if (++step == steps) ++tile, step = 0;
  }
};

// Begins to copy the step at `place`. What is not there, of outputs, rows or inputs, becomes zeros.
template <int kRowTiles>
__device__ void LoadBatchStep(const BatchArgs& args, const BatchPlace& place, char* stage) {
  constexpr int kAtOnce = kBatchThreads / kBatchChunks;  // rows
  static_assert(kAtOnce % 2 == 0);                       // so that all of a thread's lie alike
  const int chunk = threadIdx.x % kBatchChunks;
  const int first = threadIdx.x / kBatchChunks;
  const int64_t k = int64_t{place.step} * kBatchInputs + chunk * (16 / static_cast<int>(sizeof(Bf16)));
  const int64_t first_out = int64_t{place.tile} * kBatchOuts + first;
  const int64_t outs = args.out.cols - first_out;  // from there on
  const bool has_inputs = k < args.in;
  const Bf16* w = args.w + first_out * args.in + k;
  char* to = stage + BatchChunkAt(first, chunk);
#pragma unroll
  for (int i = 0; i < kBatchOuts; i += kAtOnce) {
    CpAsync16(to + i * kBatchRowBytes, w, has_inputs && i < outs);
    w += kAtOnce * args.in;
  }
  const Bf16* a = args.a + first * args.a_stride + k;
  to += kBatchOuts * kBatchRowBytes;
#pragma unroll
  for (int i = 0; i < kRowTiles * 8; i += kAtOnce) {
    CpAsync16(to + i * kBatchRowBytes, a, has_inputs && first + i < args.out.rows);
    a += kAtOnce * args.a_stride;
  }
}

__device__ inline uint4 BatchChunk(const char* at) { return *reinterpret_cast<const uint4*>(at); }

// sums += the step's products. Those on the same sums are four instructions apart.
template <int kRowTiles>
__device__ void MultiplyBatchStep(const char* stage, BatchSums<kRowTiles>& to) {
  const int lane = threadIdx.x % 32;
  const char* const outs = stage + threadIdx.x / 32 * kBatchWarpOuts * kBatchRowBytes;  // the warp's
  const char* const rows = stage + kBatchOuts * kBatchRowBytes;
#pragma unroll
  for (int k = 0; k < kBatchChunks; k += 4) {  // 32 inputs
    // Of the first of eight; the others lie alike.
    const int at = BatchChunkAt(lane / 4, k + lane % 4);
    uint4 w[kBatchOutTiles][2];
#pragma unroll
    for (int m = 0; m < kBatchOutTiles; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        w[m][half] = BatchChunk(outs + at + (m * 16 + half * 8) * kBatchRowBytes);
      }
    }
#pragma unroll
    for (int n = 0; n < kRowTiles; n += 2) {
      const uint4 a[2] = {BatchChunk(rows + at + n * 8 * kBatchRowBytes),
                          BatchChunk(rows + at + (n + 1) * 8 * kBatchRowBytes)};
#pragma unroll
      for (int m = 0; m < kBatchOutTiles; ++m) {
        const uint32_t factors[4] = {w[m][0].x, w[m][1].x, w[m][0].y, w[m][1].y};
        Mma(to.sums[m][n], factors, a[0].x, a[0].y);
        Mma(to.sums[m][n + 1], factors, a[1].x, a[1].y);
      }
#pragma unroll
      for (int m = 0; m < kBatchOutTiles; ++m) {
        const uint32_t factors[4] = {w[m][0].z, w[m][1].z, w[m][0].w, w[m][1].w};
        Mma(to.sums[m][n], factors, a[0].z, a[0].w);
        Mma(to.sums[m][n + 1], factors, a[1].z, a[1].w);
      }
    }
  }
}

// Where this thread's sums of a block's piece of a tile are: float4 [kBatchOutTiles, kRowTiles, kBatchThreads], of which it has
// every kBatchThreads-th.
template <int kRowTiles>
__device__ float4* BatchPiece(const BatchArgs& args, int block, int tile) {
  constexpr int kPiece = static_cast<int>(kBatchPieceBytes / sizeof(float4));
  return reinterpret_cast<float4*>(args.pieces) + int64_t{args.cut.PieceOf(block, tile)} * kPiece +
         threadIdx.x;
}

// Whether this block stores the tile, of which `to` is its piece: `to` is the whole tile's sums then. `last` is shared.
template <int kRowTiles>
__device__ bool JoinBatchPieces(const BatchArgs& args, int tile, BatchSums<kRowTiles>& to, uint32_t* last) {
  const int first = args.cut.BlockOf(tile * args.cut.steps);
  const int end = args.cut.BlockOf((tile + 1) * args.cut.steps - 1) + 1;
  if (end - first == 1) return true;
  float4* const own = BatchPiece<kRowTiles>(args, static_cast<int>(blockIdx.x), tile);
#pragma unroll
  for (int m = 0; m < kBatchOutTiles; ++m) {
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
      const float(&sums)[4] = to.sums[m][n];
      own[(m * kRowTiles + n) * kBatchThreads] = float4{sums[0], sums[1], sums[2], sums[3]};
    }
  }
  __threadfence();  // what this thread has stored, before the block is counted
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t* const arrived = args.arrived + tile;
    *last = atomicAdd(arrived, 1u) + 1 == static_cast<uint32_t>(end - first) ? 1 : 0;
    if (*last != 0) *arrived = 0;  // for the next launch
  }
  __syncthreads();
  if (*last == 0) return false;
  __threadfence();  // and before what others have stored is read
  to = {};
#pragma unroll
  for (int m = 0; m < kBatchOutTiles; ++m) {
#pragma unroll 1  // the loads of more at once would spill
    for (int block = first; block < end; ++block) {
      const float4* const piece = BatchPiece<kRowTiles>(args, block, tile) + m * kRowTiles * kBatchThreads;
#pragma unroll
      for (int n = 0; n < kRowTiles; ++n) {
        const float4 part = piece[n * kBatchThreads];
        float(&sums)[4] = to.sums[m][n];
        sums[0] += part.x, sums[1] += part.y, sums[2] += part.z, sums[3] += part.w;
      }
    }
  }
  return true;
}

template <typename Out, int kRowTiles>
__device__ void StoreBatchTile(const BatchArgs& args, int tile, const BatchSums<kRowTiles>& from) {
  const int lane = threadIdx.x % 32;
  const int64_t first_out = int64_t{tile} * kBatchOuts + threadIdx.x / 32 * kBatchWarpOuts + lane / 4;
  const int64_t outs = args.out.cols - first_out;  // from there on
  Out* to = static_cast<Out*>(args.out.data) + lane % 4 * 2 * args.out.stride + first_out;
  float bias[kBatchOutTiles * 2];  // of every eighth output
#pragma unroll
  for (int i = 0; i < kBatchOutTiles * 2; ++i) {
    bias[i] = args.bias != nullptr && i * 8 < outs ? args.bias[first_out + i * 8] : 0.0f;
  }
#pragma unroll
  for (int n = 0; n < kRowTiles; ++n, to += 8 * args.out.stride) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = n * 8 + lane % 4 * 2 + i % 2;
      if (row >= args.out.rows) continue;
#pragma unroll
      for (int m = 0; m < kBatchOutTiles; ++m) {
        const int out = m * 16 + i / 2 * 8;
        if (out >= outs) continue;
        Out* const at = to + i % 2 * args.out.stride + out;
        const float sum = from.sums[m][n][i] + bias[out / 8];
        Store(at, args.accumulate ? sum + Load(at) : sum);
      }
    }
  }
}

// args.cut.blocks blocks of kBatchThreads threads, at most 8 * kRowTiles rows, of whole chunks, as those of W 16-byte aligned;
// BatchSharedBytes at `shared`, 16-byte aligned.
template <int kRowTiles>
__device__ void BatchBlock(const BatchArgs& args, char* shared) {
  constexpr int kStageBytes = BatchStageBytes(kRowTiles);
  uint32_t* const last = reinterpret_cast<uint32_t*>(shared + kBatchStages * kStageBytes);
  const int steps = args.cut.steps;
  int left = args.cut.First(static_cast<int>(blockIdx.x) + 1) - args.cut.First(static_cast<int>(blockIdx.x));
  BatchPlace here(args.cut, args.cut.First(static_cast<int>(blockIdx.x)));
  BatchPlace ahead = here;
  // Of the step behind which so many are left.
  const auto stage_of = [&](int behind) {
    return shared + static_cast<unsigned>(-behind) % kBatchStages * kStageBytes;
  };
  const auto load = [&](int behind) {
    if (behind >= 0) LoadBatchStep<kRowTiles>(args, ahead, stage_of(behind));
    CpAsyncCommit();
    ahead.Advance(steps);
  };
  constexpr int kAhead = kBatchStages - 1;
  for (int i = 1; i <= kAhead; ++i) load(left - i);
  BatchSums<kRowTiles> sums = {};
#pragma unroll 1
  for (; left > 0; here.Advance(steps)) {
    --left;
    CpAsyncWait<kAhead - 1>();
    __syncthreads();  // all threads' copies of this step are there, and the step before it has been read
    load(left - kAhead);
    MultiplyBatchStep<kRowTiles>(stage_of(left), sums);
    const bool ends_piece = here.step + 1 == steps || left == 0;
    if (!ends_piece) continue;
    if (JoinBatchPieces<kRowTiles>(args, here.tile, sums, last)) {
      if (args.out.dtype == DType::kF32) {
        StoreBatchTile<float>(args, here.tile, sums);
      } else {
        StoreBatchTile<Bf16>(args, here.tile, sums);
      }
    }
    sums = {};
  }
}

}  // namespace aludel::cuda
