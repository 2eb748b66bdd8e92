#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "kernels/ops.h"

namespace aludel {

// What stands before attention in a layer: q = rope(norm(x) Wq^T + bias), and the rows of K and V that the same norm and
// [Wk | Wv] make, K rotated, go into the cache.
struct LayerInput {
  TensorView x;                      // f32 [rows, hidden]
  const float* norm = nullptr;       // f32 [hidden]
  float eps = 0.0f;                  //
  const PackedMatrix* q = nullptr;   // [q_dim, hidden]
  const PackedMatrix* kv = nullptr;  // [2 kv_dim, hidden], K above V
  const float* qkv_bias = nullptr;   // f32 [q_dim + 2 kv_dim], or null
  const float* angles = nullptr;     // of RopeAngles
  TensorView q_out;                  // f32 [rows, q_dim]
  // What adapters add to the products, of rows of x, in W's type: at most an update of all queries, one of all keys and one of all
  // values for each row.
  absl::Span<const LowRankRows> q_updates = {};
  absl::Span<const LowRankRows> kv_updates = {};
};

// What stands before the last product of a layer: out = silu(gate) * up of norm(x) W^T + bias, rounded where the composed
// operations round.
struct LayerGate {
  TensorView x;                           // f32 [rows, hidden]
  const float* norm = nullptr;            // f32 [hidden]
  float eps = 0.0f;                       //
  const PackedMatrix* gate_up = nullptr;  // [2 cols, hidden]
  const float* bias = nullptr;            // f32 [2 cols], or null
  TensorView out;                         // bf16 [rows, cols]
  // As above: at most two for each row.
  absl::Span<const LowRankRows> updates = {};
};

// Operations of a layer in fewer pieces than Ops has them, for steps of few rows, where launches and their gaps take as long
// as memory. The Ops of a device that has them is one of these, too. As Ops in all else; results are those of the operations
// that they stand for, but for the order of sums.
class FusedDecode {
 public:
  virtual ~FusedDecode() = default;

  // Whether the next three take `rows` rows of weights like `w`, for heads of `head_dim`.
  virtual bool Takes(int64_t rows, const PackedMatrix& w, int head_dim) const = 0;

  // angles [rows, 2, head_dim / 2] (f32, device memory) = cosines and sines of each row's position, scaled by the factor.
  // Row i of the batch is the i-th of the sequences' rows.
  virtual void RopeAngles(const RopeTable& rope, absl::Span<const SequenceRows> sequences, float* angles,
                          Stream stream) = 0;
  virtual void QkvRopeWrite(const LayerInput& input, absl::Span<const SequenceRows> sequences,
                            const PagedKv& kv, Stream stream) = 0;
  virtual void GateUpSilu(const LayerGate& gate, Stream stream) = 0;

  // Ops::Gemm, and Ops::AddLowRank of `groups` to its result: in one piece where there are few rows, and the same bits.
  virtual void GemmLowRank(const TensorView& a, const PackedMatrix& w, const float* bias, bool accumulate,
                           absl::Span<const LowRankRows> groups, const TensorView& out, Stream stream) = 0;
};

}  // namespace aludel
