#pragma once

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/gemm/fused_args.h"
#include "kernels/cuda/gemm/skinny_gemm.cuh"
#include "kernels/cuda/rms_norm.cuh"
#include "kernels/cuda/rope.cuh"

// Products of a decode step with what stands before and behind them. Bound by reading W once, as skinny_gemm.cuh, whose loop
// this is: each block norms the rows for itself, once, into shared memory, while the first of its weights are on their way; and the
// 16 outputs of a tile are eight pairs that belong together, the two halves of a rotated head or a gate with its up, so that the
// block finishes them. All is rounded as by the kernels that this stands for.
//
// Bodies only, see mma_attention.cuh.
namespace aludel::cuda {

// a [rows, FusedStride] of bf16. Ends without a barrier. `scratch` [rows, 32].
__device__ inline void NormIntoShared(const NormedRows& from, Bf16* a, float* scratch) {
  for (int64_t row = 0; row < from.rows; ++row) {
    NormRow<float, Bf16, true>(from.x + row * from.stride, from.in, from.weight, from.eps,
                               a + row * FusedStride(from.in), scratch + row * 32);
  }
}

// Where a tile's eight pairs stand: the first of each in rows of W from `w` on, the other `distance` rows further down; of
// `bias`, which may be null, and among all outputs, from `out` on, likewise.
struct PairTile {
  const Bf16* w;
  const float* bias;
  int64_t out;
};

// tile_at(tile) is a PairTile. Calls f(tile, row, pair, one, other), each by one thread.
template <typename TileAt, typename Added, typename F>
__device__ void MultiplyPairs(const NormedRows& from, int tiles, int64_t distance, Bf16* a, float* sums,
                              const TileAt& tile_at, const Added& added, const F& f) {
  const SkinnyRows rows{a, FusedStride(from.in), from.rows, from.in};
  AllowNext();
  MultiplyTiles<1, false>(
      tiles, rows, sums,
      [&](int tile, const Bf16*(&w)[2]) {
        const int pair = threadIdx.x % 32 / 4;
        w[0] = tile_at(tile).w + pair * from.in;
        w[1] = w[0] + distance * from.in;
      },
      [&] {
        AwaitEarlier();
        NormIntoShared(from, a, sums);
        __syncthreads();  // all of `a` is there, and the norms' sums have been read
        const int64_t first = tile_at(blockIdx.x).out;
        added.Begin(rows, sums + kSkinnySums, {first, first + distance});
      },
      [&](int tile, const float* of_warps) {
        added.Await(tile);
        for (int c = threadIdx.x; c < from.rows * kFusedPairs; c += kSkinnyThreads) {
          const int row = c / kFusedPairs;
          const int pair = c % kFusedPairs;
          const float* const bias = tile_at(tile).bias;
          f(tile, row, pair, SkinnyTotal(of_warps, row, pair, bias == nullptr ? 0.0f : bias[pair]),
            SkinnyTotal(of_warps, row, pair + kFusedPairs, bias == nullptr ? 0.0f : bias[pair + distance]));
        }
      });
  added.End();
}

// Whose outputs a tile holds, of queries, keys or values.
struct QkvTile {
  int head;   // of all three
  int first;  // of its pairs
  bool is_q, is_k;

  __device__ QkvTile(const QkvArgs& args, int tile) {
    const int tiles = args.kv.head_dim / 2 / kFusedPairs;  // of a head
    head = tile / tiles;
    first = tile % tiles * kFusedPairs;
    is_q = head < args.heads;
    is_k = !is_q && head < args.heads + args.kv.kv_heads;
  }
};

// A grid of at most QkvTiles, kSkinnyThreads threads; `a` [rows, FusedStride], `sums` [kSkinnySharedBytes]. Row i of x is the i-th
// token of the table. What is added counts outputs as `bias` does.
template <typename Page, typename Added = NothingAdded>
__device__ void QkvBlock(const QkvArgs& args, Bf16* a, float* sums, const Added& added = {}) {
  const int half = args.kv.head_dim / 2;
  MultiplyPairs(
      args.a, QkvTiles(args), half, a, sums,
      [&](int tile) {
        const QkvTile at(args, tile);
        const int64_t row = int64_t{at.is_q ? at.head : at.head - args.heads} * args.kv.head_dim + at.first;
        return PairTile{
            (at.is_q ? args.q_w : args.kv_w) + row * args.a.in,
            args.bias == nullptr ? nullptr : args.bias + int64_t{at.head} * args.kv.head_dim + at.first,
            int64_t{at.head} * args.kv.head_dim + at.first};
      },
      added,
      [&](int tile, int row, int pair, float one, float other) {
        const QkvTile at(args, tile);
        const int i = at.first + pair;
        const int64_t out = int64_t{at.head} * args.kv.head_dim + i;
        one = Added::template Sum<float>(one, added.Of(row, out));
        other = Added::template Sum<float>(other, added.Of(row, out + half));
        const float cosine = args.angles[int64_t{row} * 2 * half + i];
        const float sine = args.angles[(int64_t{row} * 2 + 1) * half + i];
        if (at.is_q) {
          float* const to = args.q + row * args.q_stride + int64_t{at.head} * args.kv.head_dim + i;
          to[0] = one * cosine - other * sine;
          to[half] = other * cosine + one * sine;
          return;
        }
        const int kv_head = (at.head - args.heads) % args.kv.kv_heads;
        const KvSlot slot = SlotOf(args.table, args.kv.block_tokens, row);
        Page* const to = static_cast<Page*>(at.is_k ? args.kv.k : args.kv.v) +
                         PageOffset(slot.block, args.kv.kv_heads, kv_head, args.kv.block_tokens, slot.slot,
                                    args.kv.head_dim) +
                         i;
        one = AsRow<Page>(one), other = AsRow<Page>(other);
        if (at.is_k) {
          const float low = one, high = other;
          one = (low * cosine - high * sine) * kKeyScale<Page>;
          other = (high * cosine + low * sine) * kKeyScale<Page>;
        }
        Store(to, one);
        Store(to + half, other);
      });
}

// As above, of at most GateTiles.
template <typename Added = NothingAdded>
__device__ void GateUpBlock(const GateArgs& args, Bf16* a, float* sums, const Added& added = {}) {
  MultiplyPairs(
      args.a, GateTiles(args), args.cols, a, sums,
      [&](int tile) {
        const int64_t first = int64_t{tile} * kFusedPairs;
        return PairTile{args.w + first * args.a.in, args.bias == nullptr ? nullptr : args.bias + first,
                        first};
      },
      added,
      [&](int tile, int row, int pair, float gate, float up) {
        const int64_t out = int64_t{tile} * kFusedPairs + pair;
        gate = Added::template Sum<Bf16>(gate, added.Of(row, out));
        up = Added::template Sum<Bf16>(up, added.Of(row, args.cols + out));
        Store(args.out + row * args.out_stride + out, SiluOf(Rounded<Bf16>(gate)) * Rounded<Bf16>(up));
      });
}

}  // namespace aludel::cuda
