#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/attention/attention_args.h"
#include "kernels/cuda/gemm/low_rank_index.h"
#include "kernels/cuda/gemm/skinny_index.h"
#include "kernels/cuda/index.h"
#include "kernels/latents.h"
#include "kernels/sample_terms.h"
#include "kernels/tensor.h"

// The launchers of the .cu files. Every pointer is device memory and every shape has been checked by CudaOps.
// They enqueue on `stream`, allocate nothing, never wait, and return the launch's error. Views with no rows
// launch nothing. This header and those files stay free of Abseil: it would triple their compile time.
namespace aludel::cuda {

// out[t, g * width + i] = x / sqrt(mean(x^2) + eps) * weight[i] for every run of `width` columns of a row.
// x and out may be the same memory.
cudaError_t LaunchNorm(const TensorView& x, int64_t width, const float* weight, float eps,
                       const TensorView& out, cudaStream_t stream);

// Rotates q [rows, heads * head_dim] in place; inverse_frequency [head_dim / 2].
cudaError_t LaunchRope(const TensorView& q, int head_dim, const float* inverse_frequency,
                       float attention_factor, const SequenceTable& table, cudaStream_t stream);

// k, v and kv of the first of `run`.
cudaError_t LaunchRopeWriteKv(const TensorView& k, const TensorView& v, const float* inverse_frequency,
                              float attention_factor, const SequenceTable& table, const KvPlanes& kv,
                              const LayerRun& run, cudaStream_t stream);

constexpr int kMaxAttentionHeadDim = 256;

// Without tensor cores: for pages of f32, and heads that are not whole 16-byte pieces of the pages'. The tiling
// that it wants for a batch whose longest sequence has `longest` rows.
QueryTiling ScalarAttentionTiling(int group, int64_t longest);

// `first_tile` [table.count] holds running sums of TileCount over the sequences, `tiles` their total.
cudaError_t LaunchScalarAttention(const TensorView& q, float scale, int64_t window,
                                  const SequenceTable& table, const QueryTiling& tiling,
                                  const int64_t* first_tile, int64_t tiles, const KvPlanes& kv,
                                  const TensorView& out, cudaStream_t stream);

// On tensor cores. Queries per tile of the two kernels, and what their key tiles divide.
int MmaPrefillQueries(int head_dim);
constexpr int kMmaDecodeQueries = 16;
constexpr int kMmaKeyTile = 64;
// Blocks of either that run at the same time on an SM of Hopper with heads of 128.
constexpr int kMmaPrefillBlocksPerSm = 2;
constexpr int kMmaDecodeBlocksPerSm = 3;

// For tiles of MmaPrefillQueries, or kMmaDecodeQueries where `decode`. Pages of bf16 or FP8, their rows whole pieces
// of 16 bytes that are aligned to it, positions below 2^31. `units` as in args.work.
// `early` as in LaunchBehind, and below.
cudaError_t LaunchMmaAttention(const AttentionArgs& args, int64_t units, bool decode, bool early,
                               cudaStream_t stream);

// As above for prefill on a GPU of compute capability 9.0, for heads that WgmmaTakes and pages of bf16: tiles of kWgmmaQueries,
// key tiles of kWgmmaKeyTile, a block on an SM at a time. The blocks share all units and all kv heads.
constexpr int kWgmmaQueries = 128;
constexpr int kWgmmaKeyTile = 128;
constexpr bool WgmmaTakes(int head_dim) { return head_dim == 64 || head_dim == 128; }
cudaError_t LaunchWgmmaAttention(const AttentionArgs& args, int64_t blocks, cudaStream_t stream);

// The second kernel, where any split count is above 1. `queries` is the capacity of a tile, `most` the most
// that any tile holds.
cudaError_t LaunchCombineSplits(const AttentionArgs& args, int64_t tiles, int queries, int most,
                                cudaStream_t stream);

// dst[i, :] = src[rows[i], :]; rows null: src[i, :].
cudaError_t LaunchCopyRows(const TensorView& src, const int32_t* rows, const TensorView& dst,
                           cudaStream_t stream);
cudaError_t LaunchCopyRows(const TensorView& src, const int64_t* rows, const TensorView& dst,
                           cudaStream_t stream);

// tokens[i] = what terms[i] draws from row i of `logits` (f32).
cudaError_t LaunchSampleRows(const TensorView& logits, const DrawTerms* terms, int32_t* tokens,
                             cudaStream_t stream);

// Codes of z [tokens, planes] (f32) among `bytes`; and back, of tokens from `first` on.
cudaError_t LaunchPackLatents(const TensorView& z, float inverse_step, const LatentPlane* planes,
                              uint8_t* bytes, cudaStream_t stream);
cudaError_t LaunchUnpackLatents(const uint8_t* bytes, const LatentPlane* planes, int64_t first, float step,
                                const TensorView& z, cudaStream_t stream);

// Vectors of at most so many elements are quantized: a block holds one in shared memory.
constexpr int64_t kMaxTokenWidth = 8 << 10;
// Rows of x and their scales and codes, rotated in blocks of `block`; and back.
cudaError_t LaunchQuantizeTokens(const TensorView& x, int bits, int64_t block, uint8_t* scales,
                                 uint8_t* codes, cudaStream_t stream);
cudaError_t LaunchDequantizeTokens(const uint8_t* scales, const uint8_t* codes, int bits, int64_t block,
                                   const TensorView& x, cudaStream_t stream);

// out (bf16) = sums (f32) + bias.
cudaError_t LaunchAddBias(const TensorView& sums, const float* bias, const TensorView& out,
                          cudaStream_t stream);

// sums [x.rows, x.cols] += x (f32), in double.
cudaError_t LaunchAddTo(double* sums, const TensorView& x, cudaStream_t stream);

cudaError_t LaunchSiluMul(const TensorView& gate_up, const TensorView& out, cudaStream_t stream);
cudaError_t LaunchSilu(const TensorView& x, const TensorView& out, cudaStream_t stream);

// out (+)= a W^T + bias for what cuBLASLt declines. w [out.cols, a.cols] contiguous, in a's type.
cudaError_t LaunchTileGemm(const TensorView& a, const void* w, const float* bias, bool accumulate,
                           const TensorView& out, cudaStream_t stream);

// The product of at most kSkinnyRows rows, see skinny_gemm.cuh for what it wants of its arguments.
// `blocks`: of it that run at once.
cudaError_t LaunchSkinnyGemm(const SkinnyArgs& args, WeightFormat format, int blocks, bool early,
                             cudaStream_t stream);

// At most kSkinnyRows rows of `a` to int8 for it: values [a.rows, whole runs], scales [groups, kSkinnyRows].
cudaError_t LaunchQuantizeRows(const TensorView& a, int8_t* values, float* scales, cudaStream_t stream);

// The two products of low_rank.cuh, the second behind the first. args.count >= 1.
cudaError_t LaunchShrink(const LowRankArgs& args, cudaStream_t stream);
cudaError_t LaunchExpand(const LowRankArgs& args, cudaStream_t stream);

// Rows [first_out, first_out + to.rows) of a matrix with scales as numbers; `to` is contiguous.
cudaError_t LaunchDequantize(const void* w, const Bf16* scales, WeightFormat format, int64_t first_out,
                             const TensorView& to, cudaStream_t stream);

}  // namespace aludel::cuda
