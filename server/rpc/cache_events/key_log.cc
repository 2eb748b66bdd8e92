#include "server/rpc/cache_events/key_log.h"

#include <algorithm>

namespace aludel {
namespace {

void AddTo(v1::CacheEvent* event, const KeyChange& change) {
  event->add_keys(change.key);
  event->mutable_kinds()->push_back(static_cast<char>(change.kind));
}

}  // namespace

void KeyLog::Tell() {
  if (std::exchange(told_, true) || on_change_ == nullptr) return;
  on_change_();
}

void KeyLog::Append(const KeyChange& change) {
  if (changes_.size() == options_.max_changes) changes_.pop_front();
  changes_.push_back(change);
  ++end_;
  Tell();
}

void KeyLog::Add(const KeyChange& change) {
  absl::MutexLock lock(&mutex_);
  if (!change.removed()) {
    Held& held = held_[change.key];
    held.kind = change.kind;
    if (++held.times == 1) Append(change);
    return;
  }
  const auto found = held_.find(change.key);
  if (found == held_.end() || --found->second.times > 0) return;
  held_.erase(found);
  Append(change);
}

void KeyLog::Clear() {
  absl::MutexLock lock(&mutex_);
  held_.clear();
  // Every reader is behind now, and reads that there is nothing.
  changes_.clear();
  ++end_;
  Tell();
}

bool KeyLog::Read(Reader* reader, v1::CacheEvent* event) const {
  event->Clear();
  absl::MutexLock lock(&mutex_);
  if (!reader->in_snapshot_ && (!reader->begun_ || reader->next_ < end_ - changes_.size())) {
    reader->begun_ = reader->in_snapshot_ = true;
    reader->next_ = end_;
    reader->piece_ = 0;
    reader->snapshot_.reserve(held_.size());
    for (const auto& [key, held] : held_) reader->snapshot_.push_back({key, held.kind});
  }
  event->set_epoch(options_.epoch);
  event->set_sequence(reader->next_);
  if (reader->in_snapshot_) {
    event->set_key_tokens(static_cast<uint32_t>(options_.key_tokens));
    event->set_producer(options_.producer);
    event->set_piece(reader->piece_++);
    for (size_t i = 0; i < options_.max_event_keys && !reader->snapshot_.empty(); ++i) {
      AddTo(event, reader->snapshot_.back());
      reader->snapshot_.pop_back();
    }
    if (reader->snapshot_.empty()) {
      reader->snapshot_.shrink_to_fit();
      reader->in_snapshot_ = false;
      event->set_complete(true);
    }
    return true;
  }
  const auto first = static_cast<size_t>(reader->next_ - (end_ - changes_.size()));
  const size_t last = std::min(changes_.size(), first + options_.max_event_keys);
  for (size_t i = first; i < last; ++i) AddTo(event, changes_[i]);
  reader->next_ += last - first;
  return last > first;
}

void KeyLog::OnRead() {
  absl::MutexLock lock(&mutex_);
  told_ = false;
}

size_t KeyLog::keys() const {
  absl::MutexLock lock(&mutex_);
  return held_.size();
}

}  // namespace aludel
