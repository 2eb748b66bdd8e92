#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/check.h"
#include "kernels/cuda/attention/attention_plan.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/sequence_table.h"
#include "kernels/fp8_pages.h"

namespace aludel::cuda {
namespace {

enum class Products { kDecode, kPrefill, kWgmmaPrefill };

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
  return call.kv.dtype != DType::kF32 && call.params.head_dim * SizeOf(call.kv.dtype) % kPiece == 0 &&
         aligned(call.kv.k) && aligned(call.kv.v) && call.params.scale > 0.0f &&
         end <= std::numeric_limits<int32_t>::max() - std::max(kMmaKeyTile, kWgmmaKeyTile);
}

AttentionWork StageWork(const AttentionPlan& plan, CudaStream& stream) {
  std::vector<int64_t> numbers = plan.first_unit;
  numbers.insert(numbers.end(), plan.first_tile.begin(), plan.first_tile.end());
  numbers.insert(numbers.end(), plan.splits.begin(), plan.splits.end());
  numbers.push_back(plan.split_keys);
  const int64_t* const first_unit = StageSpan<int64_t>(numbers, stream);
  if (first_unit == nullptr) return {};
  const int64_t* const first_tile = first_unit + plan.first_unit.size();
  const int64_t* const splits = first_tile + plan.first_tile.size();
  return {plan.tiling, first_unit, first_tile, splits, splits + plan.splits.size()};
}

// The sequences whose rows are [min_rows, max_rows] with one of the kernels.
void AttendOnTensorCores(const AttentionCall& call, const AttentionKernel& kernel, Products products,
                         int64_t min_rows, int64_t max_rows, CudaStream& stream) {
  const AttentionPlan plan = PlanAttention(call.sequences, call.params, kernel, min_rows, max_rows);
  if (plan.units == 0) return;
  const int64_t pieces = plan.units * call.params.kv_heads;
  ALUDEL_CHECK(pieces <= std::numeric_limits<int32_t>::max());
  AttentionArgs args;
  args.q = call.q;
  args.out = call.out;
  args.scale = call.params.scale;
  args.window = call.params.window;
  args.table = StageSequences(call.sequences, stream);
  args.work = StageWork(plan, stream);
  args.kv = PlanesOf(call.kv);
  args.partial = static_cast<float*>(stream.workspace());
  const bool joins_itself = products == Products::kDecode;
  // Where keys are split there are fewer tiles than blocks that run at once.
  ALUDEL_CHECK(!plan.splits_keys || plan.tiles * call.params.kv_heads <= CudaStream::kCounters);
  args.arrived = joins_itself && plan.splits_keys ? stream.counters() : nullptr;
  if (args.table.entries == nullptr || args.work.first_unit == nullptr) return;
  switch (products) {
    case Products::kDecode:
      stream.Launch("launch decode attention", LaunchMmaAttention, args, plan.units, /*decode=*/true,
                    stream.dependent_launch());
      break;
    case Products::kPrefill:
      stream.Launch("launch prefill attention", LaunchMmaAttention, args, plan.units, /*decode=*/false,
                    /*early=*/false);
      break;
    case Products::kWgmmaPrefill:
      stream.Launch("launch prefill attention with wgmma", LaunchWgmmaAttention, args,
                    stream.persistent_attention() ? std::min(pieces, kernel.blocks) : pieces);
      break;
  }
  if (!plan.splits_keys || joins_itself) return;
  stream.Launch("launch the join of attention's splits", LaunchCombineSplits, args, plan.tiles,
                kernel.queries, plan.most_queries);
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
  stream.Launch("launch attention", LaunchScalarAttention, call.q, call.params.scale, call.params.window,
                table, tiling, staged_tiles, tiles, PlanesOf(call.kv), call.out);
}

}  // namespace

void CudaOps::Attention(const TensorView& q, const AttentionParams& asked,
                        absl::Span<const SequenceRows> sequences, const PagedKv& kv, const TensorView& out,
                        Stream stream) {
  AttentionParams params = asked;
  params.scale /= KeyScale(kv.dtype);
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
  const AttentionKernel decode{
      kMmaDecodeQueries, kMmaKeyTile,    int64_t{multiprocessors_} * kMmaDecodeBlocksPerSm,
      2 * kMmaKeyTile,   kPartialFloats, state.positions()};
  const AttentionKernel mma_prefill{MmaPrefillQueries(params.head_dim),
                                    kMmaKeyTile,
                                    int64_t{multiprocessors_} * kMmaPrefillBlocksPerSm,
                                    4 * kMmaKeyTile,
                                    kPartialFloats,
                                    state.positions()};
  const AttentionKernel wgmma_prefill{kWgmmaQueries,     kWgmmaKeyTile,  multiprocessors_,
                                      4 * kWgmmaKeyTile, kPartialFloats, state.positions()};
  // Products of warpgroups want bf16 where copies arrive; mma has a place to widen FP8 into.
  const bool wgmma = wgmma_ && WgmmaTakes(params.head_dim) && kv.dtype == DType::kBf16;
  const int64_t decode_rows = DecodeRows(params.heads / params.kv_heads, kMmaDecodeQueries);
  AttendOnTensorCores(call, decode, Products::kDecode, 1, decode_rows, state);
  AttendOnTensorCores(call, wgmma ? wgmma_prefill : mma_prefill,
                      wgmma ? Products::kWgmmaPrefill : Products::kPrefill, decode_rows + 1,
                      std::numeric_limits<int64_t>::max(), state);
}

}  // namespace aludel::cuda
