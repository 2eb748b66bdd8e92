#include "runtime/bench/forward_benchmark.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "runtime/status_macros.h"

namespace aludel {

absl::StatusOr<ForwardSeconds> ForwardBenchmark::Run(int64_t requests, int64_t output_tokens) {
  const int64_t block = shape_.block_tokens;
  const int64_t shared_blocks = shape_.shared_tokens / block;
  const int64_t own_blocks = (Length() + block - 1) / block - shared_blocks;
  const int64_t blocks = shared_blocks + own_blocks * requests;
  ALUDEL_ASSIGN_OR_RETURN(
      const auto pool,
      BlockPool::Create(device_, model_->MakeKvLayout(blocks, shape_.block_tokens, shape_.kv_dtype)));
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begun = Clock::now();
  std::vector<BlockTable> tables(1);
  ALUDEL_RETURN_IF_ERROR(tables[0].Grow(*pool, shared_blocks * block));
  ALUDEL_RETURN_IF_ERROR(Forward(*pool, tables, 0, shared_blocks * block));
  const Clock::time_point shared_done = Clock::now();
  const BlockTable shared = std::move(tables[0]);
  tables = std::vector<BlockTable>(requests);
  for (BlockTable& table : tables) {
    for (const BlockRef& ref : shared.blocks()) table.Append(ref);
    ALUDEL_RETURN_IF_ERROR(table.Grow(*pool, Length()));
  }
  const int64_t prompt = shape_.shared_tokens + shape_.own_tokens;
  ALUDEL_RETURN_IF_ERROR(Forward(*pool, tables, shared_blocks * block, prompt));
  // The prompt's last token has brought the first one.
  for (int64_t i = 0; i + 1 < output_tokens; ++i) {
    ALUDEL_RETURN_IF_ERROR(Forward(*pool, tables, prompt + i, prompt + i + 1));
  }
  const auto seconds = [](Clock::duration duration) {
    return std::chrono::duration<double>(duration).count();
  };
  return ForwardSeconds{seconds(shared_done - begun), seconds(Clock::now() - shared_done)};
}

absl::Status ForwardBenchmark::Forward(BlockPool& pool, const std::vector<BlockTable>& tables, int64_t begin,
                                       int64_t end) {
  std::vector<BatchItem> items;
  int64_t room = shape_.step_tokens;
  const auto flush = [&]() -> absl::Status {
    room = shape_.step_tokens;
    const absl::Status status = model_->Forward(absl::MakeSpan(items), pool, &logits_);
    items.clear();
    return status;
  };
  ids_.resize(std::max<size_t>(ids_.size(), end - begin), 1);
  for (const BlockTable& table : tables) {
    for (int64_t at = begin; at < end;) {
      const int64_t tokens = std::min(room, end - at);
      BatchItem item;
      item.ids = absl::MakeConstSpan(ids_).subspan(0, tokens);
      item.position = at;
      item.blocks = table.ids();
      item.wants_logits = at + tokens == end;
      items.push_back(item);
      at += tokens;
      room -= tokens;
      if (room == 0) ALUDEL_RETURN_IF_ERROR(flush());
    }
  }
  return items.empty() ? absl::OkStatus() : flush();
}

}  // namespace aludel
