#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/check.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/sequence_table.h"

namespace aludel::cuda {
namespace {

// One call of the op, its shapes checked.
struct AttentionCall {
  const TensorView& q;
  const AttentionParams& params;
  absl::Span<const SequenceRows> sequences;
  const PagedKv& kv;
  const TensorView& out;
};

bool TensorCoresServe(const AttentionCall& call) {
  constexpr int kPiece = 16;  // bytes of one copy
  const auto aligned = [](const void* data) { return reinterpret_cast<uintptr_t>(data) % kPiece == 0; };
  int64_t end = 0;
  for (const SequenceRows& s : call.sequences) end = std::max(end, s.position_begin + s.rows);
  return call.kv.dtype == DType::kBf16 && call.params.head_dim * sizeof(Bf16) % kPiece == 0 &&
         aligned(call.kv.k) && aligned(call.kv.v) && call.params.scale > 0.0f &&
         end <= std::numeric_limits<int32_t>::max() - kMmaKeyTile;
}

// The sequences whose rows are [min_rows, max_rows] with one of the two kernels.
void AttendOnTensorCores(const AttentionCall& call, const AttentionKernel& kernel, bool decode,
                         int64_t min_rows, int64_t max_rows, CudaStream& stream) {
  const AttentionPlan plan = PlanAttention(call.sequences, call.params, kernel, min_rows, max_rows);
  if (plan.units == 0) return;
  AttentionArgs args;
  args.q = call.q;
  args.out = call.out;
  args.scale = call.params.scale;
  args.window = call.params.window;
  args.table = StageSequences(call.sequences, stream);
  args.work = {plan.tiling, StageSpan<int64_t>(plan.first_unit, stream),
               StageSpan<int64_t>(plan.first_tile, stream), StageSpan<int32_t>(plan.splits, stream),
               plan.split_keys};
  args.kv = PlanesOf(call.kv);
  args.partial = static_cast<float*>(stream.workspace());
  if (args.table.entries == nullptr || args.work.first_unit == nullptr || args.work.first_tile == nullptr ||
      args.work.splits == nullptr) {
    return;
  }
  stream.Collect(LaunchMmaAttention(args, plan.units, decode, stream.get()),
                 decode ? "launch decode attention" : "launch prefill attention");
  if (!plan.splits_keys) return;
  stream.Collect(LaunchCombineSplits(args, plan.tiles, kernel.queries, plan.most_queries, stream.get()),
                 "launch the join of attention's splits");
}

void AttendWithout(const AttentionCall& call, CudaStream& stream) {
  int64_t longest = 0;
  for (const SequenceRows& sequence : call.sequences) longest = std::max(longest, sequence.rows);
  const QueryTiling tiling = ScalarAttentionTiling(call.params.heads / call.params.kv_heads, longest);
  std::vector<int64_t> first_tile;
  int64_t tiles = 0;
  for (const SequenceRows& sequence : call.sequences) {
    first_tile.push_back(tiles);
    tiles += TileCount(tiling, sequence.rows);
  }
  const SequenceTable table = StageSequences(call.sequences, stream);
  const int64_t* staged_tiles = StageSpan<int64_t>(first_tile, stream);
  if (table.entries == nullptr || staged_tiles == nullptr) return;
  stream.Collect(LaunchScalarAttention(call.q, call.params.scale, call.params.window, table, tiling,
                                       staged_tiles, tiles, PlanesOf(call.kv), call.out, stream.get()),
                 "launch attention");
}

}  // namespace

void CudaOps::Attention(const TensorView& q, const AttentionParams& params,
                        absl::Span<const SequenceRows> sequences, const PagedKv& kv, const TensorView& out,
                        Stream stream) {
  ALUDEL_CHECK(params.heads % params.kv_heads == 0 && params.kv_heads == kv.kv_heads);
  ALUDEL_CHECK(params.head_dim == kv.head_dim && q.cols == int64_t{params.heads} * params.head_dim);
  ALUDEL_CHECK(out.cols == q.cols && params.head_dim <= kMaxAttentionHeadDim);
  CheckSequences(sequences, std::min(q.rows, out.rows), kv.block_tokens);
  if (TotalRows(sequences) == 0) return;
  CudaStream& state = Enter(stream);
  const AttentionCall call{q, params, sequences, kv, out};
  if (!TensorCoresServe(call)) return AttendWithout(call, state);
  // Splits of fewer keys are not worth joining. Partial results of one launch have been joined before the
  // next one, on the same stream, overwrites them.
  constexpr int64_t kPartialFloats = CudaStream::kWorkspaceBytes / sizeof(float);
  const AttentionKernel decode{kMmaDecodeQueries, kMmaKeyTile,
                               int64_t{multiprocessors_} * kMmaDecodeBlocksPerSm, 2 * kMmaKeyTile,
                               kPartialFloats};
  const AttentionKernel prefill{MmaPrefillQueries(params.head_dim), kMmaKeyTile,
                                int64_t{multiprocessors_} * kMmaPrefillBlocksPerSm, 4 * kMmaKeyTile,
                                kPartialFloats};
  const int64_t decode_rows = DecodeRows(params.heads / params.kv_heads, kMmaDecodeQueries);
  AttendOnTensorCores(call, decode, /*decode=*/true, 1, decode_rows, state);
  AttendOnTensorCores(call, prefill, /*decode=*/false, decode_rows + 1, std::numeric_limits<int64_t>::max(),
                      state);
}

}  // namespace aludel::cuda
