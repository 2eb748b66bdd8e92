#pragma once

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/gemm/fused_args.h"
#include "kernels/cuda/gemm/skinny_gemm.cuh"
#include "kernels/cuda/rms_norm.cuh"
#include "kernels/cuda/rope.cuh"

// Products of a decode step with what stands before and behind them. Bound by reading W once, as skinny_gemm.cuh, whose loop
// this is: each block norms the rows for itself, into shared memory, while the first of its weights are on their way; and its
// 16 outputs are eight pairs that belong together, the two halves of a rotated head or a gate with its up, so that the block
// finishes them. All is rounded as by the kernels that this stands for.
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

// The block's pairs of outputs: rows of W from `w_first` on, and those `distance` further down; of `bias`, which may be null,
// likewise. Calls f(row, pair, one, other), each by one thread.
template <typename F>
__device__ void MultiplyPairs(const NormedRows& from, const Bf16* w_first, const float* bias,
                              int64_t distance, Bf16* a, float* sums, const F& f) {
  const int lane = threadIdx.x % 32;
  const Bf16* const w[2] = {w_first + lane / 4 * from.in, w_first + (lane / 4 + distance) * from.in};
  const SkinnyRows rows{a, FusedStride(from.in), from.rows, from.in};
  float partial[1][4] = {};
  AllowNext();
  SkinnySums<1>(w, rows, partial, [&] {
    AwaitEarlier();
    NormIntoShared(from, a, sums);
    __syncthreads();  // all of `a` is there, and the norms' sums have been read
  });
  KeepSkinny<1>(partial, sums);
  __syncthreads();
  for (int c = threadIdx.x; c < from.rows * kFusedPairs; c += kSkinnyThreads) {
    const int row = c / kFusedPairs;
    const int pair = c % kFusedPairs;
    f(row, pair, SkinnyTotal(sums, row, pair, bias == nullptr ? 0.0f : bias[pair]),
      SkinnyTotal(sums, row, pair + kFusedPairs, bias == nullptr ? 0.0f : bias[pair + distance]));
  }
}

// grid ((heads + 2 kv_heads) * head_dim / kSkinnyOuts), kSkinnyThreads threads; `a` [rows, FusedStride], `sums`
// [kSkinnySharedBytes]. Row i of x is the i-th token of the table.
template <typename Page>
__device__ void QkvBlock(const QkvArgs& args, Bf16* a, float* sums) {
  const int half = args.kv.head_dim / 2;
  const int blocks = half / kFusedPairs;  // of a head
  const int head = static_cast<int>(blockIdx.x) / blocks;
  const int first = static_cast<int>(blockIdx.x) % blocks * kFusedPairs;
  const bool is_q = head < args.heads;
  const int kv_head = (head - args.heads) % args.kv.kv_heads;
  const bool is_k = head < args.heads + args.kv.kv_heads;
  const int64_t in_matrix = int64_t{is_q ? head : head - args.heads} * args.kv.head_dim + first;
  const float* const bias =
      args.bias == nullptr ? nullptr : args.bias + int64_t{head} * args.kv.head_dim + first;
  MultiplyPairs(args.a, (is_q ? args.q_w : args.kv_w) + in_matrix * args.a.in, bias, half, a, sums,
                [&](int row, int pair, float one, float other) {
                  const int i = first + pair;
                  const float cosine = args.angles[int64_t{row} * 2 * half + i];
                  const float sine = args.angles[(int64_t{row} * 2 + 1) * half + i];
                  if (is_q) {
                    float* const to = args.q + row * args.q_stride + int64_t{head} * args.kv.head_dim + i;
                    to[0] = one * cosine - other * sine;
                    to[half] = other * cosine + one * sine;
                    return;
                  }
                  const KvSlot slot = SlotOf(args.table, args.kv.block_tokens, row);
                  Page* const to = static_cast<Page*>(is_k ? args.kv.k : args.kv.v) +
                                   PageOffset(slot.block, args.kv.kv_heads, kv_head, args.kv.block_tokens,
                                              slot.slot, args.kv.head_dim) +
                                   i;
                  if (is_k) {
                    const float low = Rounded<Page>(one), high = Rounded<Page>(other);
                    one = low * cosine - high * sine;
                    other = high * cosine + low * sine;
                  }
                  Store(to, one);
                  Store(to + half, other);
                });
}

// grid (cols / kFusedPairs), the rest as above.
__device__ inline void GateUpBlock(const GateArgs& args, Bf16* a, float* sums) {
  const int64_t first = int64_t{blockIdx.x} * kFusedPairs;
  MultiplyPairs(args.a, args.w + first * args.a.in, args.bias == nullptr ? nullptr : args.bias + first,
                args.cols, a, sums, [&](int row, int pair, float gate, float up) {
                  Store(args.out + row * args.out_stride + first + pair,
                        SiluOf(Rounded<Bf16>(gate)) * Rounded<Bf16>(up));
                });
}

}  // namespace aludel::cuda
