#include "server/host/warm_up.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>

#include "runtime/codec/handoff.h"
#include "runtime/kv/block_pool.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int kBlockTokens = 16;
constexpr int64_t kShortest = 16;
constexpr int64_t kLongest = 1024;
constexpr int64_t kGrowth = 4;
constexpr double kEnoughSeconds = 0.02;

using Clock = std::chrono::steady_clock;

absl::StatusOr<double> Prefill(Transformer& model, BlockPool& pool, absl::Span<const int32_t> ids) {
  BlockTable table;
  const auto tokens = static_cast<int64_t>(ids.size());
  ALUDEL_RETURN_IF_ERROR(table.Grow(pool, tokens));
  const Clock::time_point start = Clock::now();
  std::vector<float> logits;
  ALUDEL_RETURN_IF_ERROR(RunTokens(model, pool, table.ids(), ids, 0, tokens, nullptr, &logits));
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

absl::StatusOr<std::vector<PrefillSample>> WarmUp(Transformer& model, DType kv_dtype) {
  const ModelConfig& config = model.config();
  const int64_t longest = std::min<int64_t>(kLongest, config.max_positions);
  const int64_t blocks = (longest + kBlockTokens - 1) / kBlockTokens;
  ALUDEL_ASSIGN_OR_RETURN(
      const std::unique_ptr<BlockPool> pool,
      BlockPool::Create(model.device(), model.MakeKvLayout(blocks, kBlockTokens, kv_dtype)));
  std::mt19937 random(1);
  std::vector<PrefillSample> samples;
  for (int64_t tokens = std::min(kShortest, longest); tokens <= longest; tokens *= kGrowth) {
    std::vector<int32_t> ids(tokens);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % config.vocab);
    ALUDEL_RETURN_IF_ERROR(Prefill(model, *pool, ids).status());
    ALUDEL_ASSIGN_OR_RETURN(double seconds, Prefill(model, *pool, ids));
    if (seconds >= kEnoughSeconds) {
      // Perhaps a thread only waited for a core: then a small model seems to take more than a millisecond a token.
      ALUDEL_ASSIGN_OR_RETURN(const double again, Prefill(model, *pool, ids));
      seconds = std::min(seconds, again);
    }
    samples.push_back({tokens, seconds});
    if (seconds >= kEnoughSeconds) break;
  }
  return samples;
}

}  // namespace aludel
