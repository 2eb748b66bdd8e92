#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/device.h"
#include "kernels/latents.h"
#include "kernels/sample.h"
#include "kernels/tensor.h"
#include "kernels/weight_format.h"

namespace aludel {

// A weight matrix W [out, in] in whatever layout the device multiplies fastest. Opaque; belongs to
// one device.
class PackedMatrix {
 public:
  virtual ~PackedMatrix() = default;
  virtual int64_t out_features() const = 0;
  virtual int64_t in_features() const = 0;
  virtual WeightFormat format() const = 0;
  // Rows of W that the layout keeps together: where PackRows may begin.
  virtual int64_t row_block() const = 0;
};

// Rows of a weight matrix as E4M3 numbers (e4m3.h) with a scale for each row: W[r, i] = scales[r] * codes[r, i]. Host memory.
struct Fp8Rows {
  const uint8_t* codes = nullptr;  // [rows, cols]
  const float* scales = nullptr;   // [rows]
  int64_t rows = 0;
  int64_t cols = 0;
};

// Low-rank updates of some of the rows of a weight matrix W [out, in] (Hu et al. 2021), in the layout that the
// device multiplies fastest. Opaque; belongs to one device.
class PackedLowRank {
 public:
  virtual ~PackedLowRank() = default;
  virtual int64_t out_features() const = 0;
  virtual int64_t in_features() const = 0;
  virtual size_t bytes() const = 0;
};

// One of them: rows [out_begin, out_begin + b.rows) of W get scale * B A.
struct LowRankPart {
  TensorView a;  // [rank, in], host memory, f32 or bf16, contiguous
  TensorView b;  // [outputs, rank], likewise
  float scale = 0;
  int64_t out_begin = 0;
};

// The rows of a batch that take one update.
struct LowRankRows {
  const PackedLowRank* update = nullptr;
  absl::Span<const int32_t> rows;
};

// One layer's paged cache. Block b holds tokens [b * block_tokens, ...) of whichever sequence lists it.
struct PagedKv {
  void* k = nullptr;  // [blocks, kv_heads, block_tokens, head_dim], rotated keys times KeyScale(dtype)
  void* v = nullptr;  // [blocks, kv_heads, block_tokens, head_dim]
  DType dtype = DType::kBf16;
  int block_tokens = 0;
  int kv_heads = 0;
  int head_dim = 0;
};

// A run of consecutive rows of a batch that belongs to one sequence: row `row_begin + i` is the token at
// position `position_begin + i`, and its sequence's cache lies in `blocks` (enough of them to cover every
// position up to the last row's). The block list is read while the op is called, in Device::Replay until that returns.
struct SequenceRows {
  int64_t row_begin = 0;
  int64_t rows = 0;
  int64_t position_begin = 0;
  absl::Span<const int32_t> blocks;
};

// Rotary embedding, half-split pairing as Llama checkpoints store it: pair (x_i, x_{i + head_dim/2}) turns by
// position * inverse_frequency[i], then is scaled by `attention_factor` (1 except for YaRN).
struct RopeTable {
  absl::Span<const float> inverse_frequency;  // [head_dim / 2]
  float attention_factor = 1.0f;
};

struct AttentionParams {
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  float scale = 0.0f;  // usually 1 / sqrt(head_dim)
  int64_t window = 0;  // 0: full causal; else a token sees itself and the window - 1 before it
};

// The operations a decoder-only transformer is made of. Every call is asynchronous on `stream`, allocates
// nothing that the caller sees, and checks shapes with ALUDEL_CHECK, because shapes come from validated
// models. The CPU implementation is the reference for the CUDA one. Thread-safe for calls on
// different streams.
class Ops {
 public:
  virtual ~Ops() = default;

  // Memory for weights [out, in] in the device's own layout and `format`, still without values.
  // Unimplemented where the device does not have that format; the error says what it needs.
  virtual absl::StatusOr<std::unique_ptr<PackedMatrix>> NewPacked(int64_t out, int64_t in,
                                                                  WeightFormat format) = 0;

  // Copies rows [row_begin, row_begin + host_rows.rows) of W from host memory (f32 or bf16, contiguous) into
  // `w`. Begin and end are multiples of w.row_block(), or the end is the last row. Any number of threads may
  // write different rows at the same time.
  virtual absl::Status PackRows(const TensorView& host_rows, int64_t row_begin, PackedMatrix& w) = 0;
  // As above into a `w` of kFp8, which keeps the codes and scales as they are.
  virtual absl::Status PackFp8Rows(const Fp8Rows& host_rows, int64_t row_begin, PackedMatrix& w) = 0;
  // Whether products of kFp8 are made for speed here, so that what a checkpoint stores in FP8 is best kept so.
  virtual bool KeepsFp8() const = 0;
  // Whether what products leave of bf16 is best rounded to bf16 at once: here rows go through memory between two operations,
  // and their bytes are what those take. Elsewhere they stay in a cache, in f32.
  virtual bool KeepsNarrow() const = 0;

  // Both for a whole matrix.
  absl::StatusOr<std::unique_ptr<PackedMatrix>> Pack(const TensorView& host_weights, WeightFormat format) {
    absl::StatusOr<std::unique_ptr<PackedMatrix>> packed =
        NewPacked(host_weights.rows, host_weights.cols, format);
    if (!packed.ok()) return packed;
    const absl::Status status = PackRows(host_weights, 0, **packed);
    if (!status.ok()) return status;
    return packed;
  }

  // out[t, :] = row ids[t] of `table`, which is f32 or bf16: packed, so that it can be the head as well.
  // Every id is in range: the caller has checked.
  virtual void Embed(absl::Span<const int32_t> ids, const PackedMatrix& table, const TensorView& out,
                     Stream stream) = 0;

  // out = x / sqrt(mean(x^2) + eps) * weight, per row (Zhang & Sennrich 2019). x f32, weight f32 [cols],
  // out any.
  virtual void RmsNorm(const TensorView& x, const float* weight, float eps, const TensorView& out,
                       Stream stream) = 0;

  // out = a W^T + bias, or out += a W^T + bias where `accumulate`. bias f32 [out] or null. Sums in f32. `a`
  // has W's type; where W has scales either type will do, and its rows are rounded to 8 bits with a scale for
  // each kScaleInputs inputs, so that products within are exact integers (on CUDA where there are few rows). Where W
  // is kFp8 they are rounded to E4M3 with a scale for each row (on CUDA where there are more than 16; fewer are taken as
  // bf16): a row with NaN or infinities gives NaN, and one whose largest is below 2^-119 nothing.
  virtual void Gemm(const TensorView& a, const PackedMatrix& w, const float* bias, bool accumulate,
                    const TensorView& out, Stream stream) = 0;

  // Memory for the updates `parts` of a matrix [out, in], whose rows do not overlap, kept in `dtype`.
  // InvalidArgument where the device does not take so high a rank.
  virtual absl::StatusOr<std::unique_ptr<PackedLowRank>> PackLowRank(absl::Span<const LowRankPart> parts,
                                                                     int64_t out, int64_t in,
                                                                     DType dtype) = 0;

  // out[t, :] += scale * B (A x[t, :]) for every row t of every group: what the weights of a row's own adapter
  // add to the product with W. Sums in f32; A x is not rounded between. x has the updates' dtype. No row is in
  // two groups. A row's result does not depend on what other rows there are.
  virtual void AddLowRank(const TensorView& x, absl::Span<const LowRankRows> groups, const TensorView& out,
                          Stream stream) = 0;

  // Per head RMSNorm of x [rows, heads * head_dim] in place (Qwen3's q and k norm). weight f32 [head_dim].
  virtual void HeadNorm(const TensorView& x, int head_dim, const float* weight, float eps, Stream stream) = 0;

  // Rotates q [rows, heads * head_dim] in place.
  virtual void Rope(const TensorView& q, int head_dim, const RopeTable& rope,
                    absl::Span<const SequenceRows> sequences, Stream stream) = 0;

  // Rotates k [rows, kv_heads * head_dim] (before RoPE) and writes it and v [rows, kv_heads * head_dim] into
  // the pages. A bf16 cache rounds k to bf16 *before* it is rotated, so that a key that arrived over the wire
  // as bf16 gives the same page as one computed here; so does an FP8 cache (fp8_pages.h) with k and v, and then
  // rounds to its own numbers. k and v are not changed.
  virtual void RopeWriteKv(const TensorView& k, const TensorView& v, const RopeTable& rope,
                           absl::Span<const SequenceRows> sequences, const PagedKv& kv, Stream stream) = 0;

  // The same of several layers, whose rows lie side by side: `rows` [rows, layers * 2 * kv_heads * head_dim] = K, V of the first
  // layer, K, V of the next. Their pages are of one shape and as far apart as those of the first two, as in one pool.
  virtual void RopeWriteLayers(const TensorView& rows, const RopeTable& rope,
                               absl::Span<const SequenceRows> sequences, absl::Span<const PagedKv> layers,
                               Stream stream) {
    int64_t column = 0;
    for (const PagedKv& kv : layers) {
      const int64_t kv_dim = int64_t{kv.kv_heads} * kv.head_dim;
      RopeWriteKv(rows.Cols(column, kv_dim), rows.Cols(column + kv_dim, kv_dim), rope, sequences, kv, stream);
      column += 2 * kv_dim;
    }
  }

  // out[t, h, :] = softmax(scale * q[t, h] . K[0..pos(t)]) V, causal, grouped queries, over pages that
  // already hold these rows. q and out [rows, heads * head_dim].
  virtual void Attention(const TensorView& q, const AttentionParams& params,
                         absl::Span<const SequenceRows> sequences, const PagedKv& kv, const TensorView& out,
                         Stream stream) = 0;

  // out = silu(gate) * up, with gate_up [rows, 2 * cols] = [gate | up] (Shazeer 2020).
  virtual void SiluMul(const TensorView& gate_up, const TensorView& out, Stream stream) = 0;

  // out = silu(x) = x / (1 + exp(-x)), same shape (Hendrycks & Gimpel 2016).
  virtual void Silu(const TensorView& x, const TensorView& out, Stream stream) = 0;

  // out[i, :] = x[rows[i], :].
  virtual void GatherRows(const TensorView& x, absl::Span<const int64_t> rows, const TensorView& out,
                          Stream stream) = 0;

  // tokens[i] (device memory) = a token drawn from row i of `logits` (f32) as draws[i] says. sample.h defines
  // it to the bit: all devices choose alike. kNoToken where logits are no numbers.
  virtual void SampleRows(const TensorView& logits, absl::Span<const RowSampling> draws, int32_t* tokens,
                          Stream stream) = 0;

  // Codes of z [tokens, planes] (f32), column i as planes[i] says, among `bytes` (device memory): LatentCode.
  virtual void PackLatents(const TensorView& z, float inverse_step, absl::Span<const LatentPlane> planes,
                           uint8_t* bytes, Stream stream) = 0;
  // z[t, :] = step * codes of token first + t, the inverse.
  virtual void UnpackLatents(const uint8_t* bytes, absl::Span<const LatentPlane> planes, int64_t first,
                             float step, const TensorView& z, Stream stream) = 0;

  // Rows of x as one vector each to integers of 8 or 4 bits: a scale (two bytes) and codes (cols * bits / 8)
  // a row, as TokenQuantizer makes them, in device memory. kNoScale, and any codes, where a row is
  // not finite.
  virtual void QuantizeTokens(const TensorView& x, int bits, uint8_t* scales, uint8_t* codes,
                              Stream stream) = 0;
  // The inverse, to x (f32). Scales are valid: the caller has checked.
  virtual void DequantizeTokens(const uint8_t* scales, const uint8_t* codes, int bits, const TensorView& x,
                                Stream stream) = 0;

  // dst[i] = dtype(src[i]), same shape.
  virtual void Convert(const TensorView& src, const TensorView& dst, Stream stream) = 0;
};

}  // namespace aludel
