#include "server/store/feed/chunk_keeper.h"

#include <algorithm>

namespace aludel {

void ChunkKeeper::Add(const FrameCoverage& coverage, absl::Span<const uint8_t> payload) {
  if (!keeps_ || Keep(coverage, payload)) return;
  KeepNoMore();
}

void ChunkKeeper::KeepNoMore() {
  keeps_ = false;
  frames_ = {};
  waiting_ = {};
  End();
}

void ChunkKeeper::SetFront(const StorePosition& front) {
  if (!std::exchange(spec_.waits, false) || !keeps_) return;
  const bool is_front = front.tokens == spec_.begin.tokens;
  if (is_front) spec_.begin = front;
  for (Waiting& chunk : std::exchange(waiting_, {})) {
    if (!is_front || !Put(chunk.end, std::move(chunk.frames))) return KeepNoMore();
  }
  if (!is_front) KeepNoMore();
}

bool ChunkKeeper::Put(int64_t end, std::vector<StoredFrame> frames) {
  if (!spec_.store->Put(spec_.prompt, end, std::move(frames), &spec_.begin)) return false;
  if (spec_.flight != nullptr) spec_.flight->Advance(end);
  return true;
}

bool ChunkKeeper::Keep(const FrameCoverage& coverage, absl::Span<const uint8_t> payload) {
  // A chunk is named by the end of its tokens: recomputed head tokens in front of its frames belong to it.
  const int64_t end = int64_t{coverage.token_begin} + coverage.tokens;
  if (!ledger_.has_value()) {
    const int64_t front = waiting_.empty() ? spec_.begin.tokens : waiting_.back().end;
    const int64_t begin = std::max(front, spec_.codec->recomputed_head_tokens);
    if (end <= begin || end > static_cast<int64_t>(spec_.prompt.size())) return false;
    end_ = end;
    ledger_.emplace(spec_.codec->shipped_layers, static_cast<uint32_t>(begin), static_cast<uint32_t>(end));
  }
  bytes_ += payload.size();
  if (end != end_ || bytes_ > spec_.store->max_chunk_bytes() || !ledger_->Add(coverage).ok()) return false;
  frames_.push_back({coverage, {payload.begin(), payload.end()}});
  if (!ledger_->complete()) return true;
  ledger_.reset();
  const size_t bytes = std::exchange(bytes_, 0);
  if (!spec_.waits) return Put(end, std::exchange(frames_, {}));
  waiting_bytes_ += bytes;
  if (waiting_bytes_ > spec_.max_waiting_bytes) return false;
  waiting_.push_back({end, std::exchange(frames_, {})});
  return true;
}

}  // namespace aludel
