#include "server/store/feed/chunk_keeper.h"

#include <algorithm>

namespace aludel {

void ChunkKeeper::Add(const FrameCoverage& coverage, absl::Span<const uint8_t> payload) {
  if (!keeps_ || Keep(coverage, payload)) return;
  keeps_ = false;
  frames_ = {};
  End();
}

bool ChunkKeeper::Keep(const FrameCoverage& coverage, absl::Span<const uint8_t> payload) {
  // A chunk is named by the end of its tokens: recomputed head tokens in front of its frames belong to it.
  const int64_t end = int64_t{coverage.token_begin} + coverage.tokens;
  if (!ledger_.has_value()) {
    const int64_t begin = std::max(spec_.begin.tokens, spec_.codec->recomputed_head_tokens);
    if (end <= begin || end > static_cast<int64_t>(spec_.prompt.size())) return false;
    end_ = end;
    ledger_.emplace(spec_.codec->shipped_layers, static_cast<uint32_t>(begin), static_cast<uint32_t>(end));
  }
  bytes_ += payload.size();
  if (end != end_ || bytes_ > spec_.store->max_chunk_bytes() || !ledger_->Add(coverage).ok()) return false;
  frames_.push_back({coverage, {payload.begin(), payload.end()}});
  if (!ledger_->complete()) return true;
  ledger_.reset();
  bytes_ = 0;
  if (!spec_.store->Put(spec_.prompt, end, std::exchange(frames_, {}), &spec_.begin)) return false;
  if (spec_.flight != nullptr) spec_.flight->Advance(end);
  return true;
}

}  // namespace aludel
