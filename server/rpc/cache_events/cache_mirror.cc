#include "server/rpc/cache_events/cache_mirror.h"

#include <utility>

namespace aludel {

CacheMirror::Heard CacheMirror::Fail(Heard why) {
  state_ = State::kNothing;
  pieces_ = std::vector<KeyChange>();  // also its memory
  return why;
}

CacheMirror::Heard CacheMirror::Hear(const v1::CacheEvent& event) {
  Drop();
  if (event.kinds().size() != static_cast<size_t>(event.keys_size())) return Fail(Heard::kBroken);
  return event.has_piece() ? HearPiece(event) : HearChanges(event);
}

CacheMirror::Heard CacheMirror::HearPiece(const v1::CacheEvent& event) {
  if (event.piece() == 0) {
    state_ = State::kInSnapshot;
    epoch_ = event.epoch();
    next_ = event.sequence();
    piece_ = 0;
    pieces_.clear();
    key_tokens_ = std::max<int64_t>(1, event.key_tokens());
    producer_ = event.producer();
  }
  if (state_ != State::kInSnapshot || event.piece() != piece_ || event.epoch() != epoch_ ||
      event.sequence() != next_) {
    return Fail(Heard::kBroken);
  }
  ++piece_;
  for (int i = 0; i < event.keys_size(); ++i) {
    const KeyChange change = {event.keys(i), static_cast<uint8_t>(event.kinds()[static_cast<size_t>(i)])};
    if (change.removed()) return Fail(Heard::kBroken);
    pieces_.push_back(change);
  }
  if (pieces_.size() > max_keys_) return Fail(Heard::kTooMany);
  if (!event.complete()) return Heard::kNothing;
  state_ = State::kCurrent;
  changes_ = std::exchange(pieces_, {});
  return Heard::kSnapshot;
}

CacheMirror::Heard CacheMirror::HearChanges(const v1::CacheEvent& event) {
  const auto count = static_cast<uint64_t>(event.keys_size());
  if (state_ != State::kCurrent || event.epoch() != epoch_ || event.sequence() > next_) {
    return Fail(Heard::kBroken);
  }
  const uint64_t known = next_ - event.sequence();
  if (known >= count) return Heard::kNothing;
  for (uint64_t i = known; i < count; ++i) {
    changes_.push_back({event.keys(static_cast<int>(i)), static_cast<uint8_t>(event.kinds()[i])});
  }
  next_ += count - known;
  return Heard::kChanges;
}

}  // namespace aludel
