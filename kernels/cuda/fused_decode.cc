#include "kernels/fused_decode.h"

#include <optional>

#include "kernels/check.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/gemm/adapted_launch.h"
#include "kernels/cuda/gemm/fused_launch.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/gemm/slice_updates.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/sequence_table.h"

namespace aludel::cuda {
namespace {

const Bf16* WeightsOf(const PackedMatrix* w) {
  return static_cast<const Bf16*>(static_cast<const CudaPackedMatrix*>(w)->data());
}

NormedRows Normed(const TensorView& x, const float* weight, float eps) {
  ALUDEL_CHECK(x.dtype == DType::kF32 && x.stride % kLaneInputs == 0 &&
               reinterpret_cast<uintptr_t>(x.data) % 16 == 0);
  return {x.f32(), x.stride, x.rows, x.cols, weight, eps};
}

AddedArgs AddedTo(const TensorView& x, absl::Span<const StackedUpdates> stack, const CudaStream& stream) {
  const std::optional<AddedArgs> added = SliceUpdates(stack, x.rows, x.cols, stream);
  ALUDEL_CHECK(added.has_value());
  return *added;
}

}  // namespace

bool CudaOps::Takes(int64_t rows, const PackedMatrix& w, int head_dim) const {
  const int64_t in = w.in_features();
  return w.format() == WeightFormat::kBf16 && rows <= kFusedRows &&
         rows * in * sizeof(Bf16) <= kFusedRowBytes && in % kLaneInputs == 0 && head_dim % kSkinnyOuts == 0 &&
         w.out_features() % kSkinnyOuts == 0;
}

void CudaOps::RopeAngles(const RopeTable& rope, absl::Span<const SequenceRows> sequences, float* angles,
                         Stream stream) {
  if (TotalRows(sequences) == 0) return;
  CudaStream& state = Enter(stream);
  const float* frequencies = StageSpan(rope.inverse_frequency, state);
  const SequenceTable table = StageSequences(sequences, state);
  if (frequencies == nullptr || table.entries == nullptr) return;
  state.Launch("launch RopeAngles", LaunchRopeAngles, frequencies, rope.attention_factor,
               static_cast<int>(rope.inverse_frequency.size()), table, angles);
}

void CudaOps::QkvRopeWrite(const LayerInput& input, absl::Span<const SequenceRows> sequences,
                           const PagedKv& kv, Stream stream) {
  const int64_t kv_dim = int64_t{kv.kv_heads} * kv.head_dim;
  ALUDEL_CHECK(Takes(input.x.rows, *input.q, kv.head_dim) && Takes(input.x.rows, *input.kv, kv.head_dim));
  ALUDEL_CHECK(input.q->in_features() == input.x.cols && input.kv->in_features() == input.x.cols);
  ALUDEL_CHECK(input.kv->out_features() == 2 * kv_dim && input.q->out_features() % kv.head_dim == 0);
  ALUDEL_CHECK(input.q_out.dtype == DType::kF32 && input.q_out.rows == input.x.rows &&
               input.q_out.cols == input.q->out_features());
  CheckSequences(sequences, input.x.rows, kv.block_tokens);
  int64_t row = 0;
  for (const SequenceRows& s : sequences) {
    ALUDEL_CHECK(s.row_begin == row);
    row += s.rows;
  }
  ALUDEL_CHECK(row == input.x.rows);
  CudaStream& state = Enter(stream);
  const SequenceTable table = StageSequences(sequences, state);
  if (table.entries == nullptr) return;
  const QkvArgs args{Normed(input.x, input.norm, input.eps),
                     WeightsOf(input.q),
                     WeightsOf(input.kv),
                     input.qkv_bias,
                     input.angles,
                     input.q_out.f32(),
                     input.q_out.stride,
                     static_cast<int>(input.q->out_features() / kv.head_dim),
                     table,
                     PlanesOf(kv)};
  const int blocks = SkinnyBlocks(kFusedRows, multiprocessors_);
  const AddedArgs added =
      AddedTo(input.x, {{input.q_updates, input.q->out_features()}, {input.kv_updates, 2 * kv_dim}}, state);
  if (added.sum_count > 0) {
    state.Launch("launch AdaptedQkv", LaunchAdaptedQkv, args, added, blocks, state.dependent_launch());
  } else {
    state.Launch("launch NormQkv", LaunchQkv, args, blocks, state.dependent_launch());
  }
}

void CudaOps::GateUpSilu(const LayerGate& gate, Stream stream) {
  ALUDEL_CHECK(Takes(gate.x.rows, *gate.gate_up, kSkinnyOuts) && gate.gate_up->in_features() == gate.x.cols);
  ALUDEL_CHECK(gate.gate_up->out_features() == 2 * gate.out.cols && gate.out.dtype == DType::kBf16 &&
               gate.out.rows == gate.x.rows);
  CudaStream& state = Enter(stream);
  const GateArgs args{Normed(gate.x, gate.norm, gate.eps),
                      WeightsOf(gate.gate_up),
                      gate.bias,
                      gate.out.bf16(),
                      gate.out.stride,
                      gate.out.cols};
  const int blocks = SkinnyBlocks(kFusedRows, multiprocessors_);
  const AddedArgs added = AddedTo(gate.x, {{gate.updates, 2 * gate.out.cols}}, state);
  if (added.sum_count > 0) {
    state.Launch("launch AdaptedGateUp", LaunchAdaptedGateUp, args, added, blocks, state.dependent_launch());
  } else {
    state.Launch("launch NormGateUp", LaunchGateUp, args, blocks, state.dependent_launch());
  }
}

}  // namespace aludel::cuda
