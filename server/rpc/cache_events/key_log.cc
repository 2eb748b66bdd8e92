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

void KeyLog::BeginSnapshot(Reader* reader) const {
  reader->snapshot_ = snapshot_.keys.lock();
  if (reader->snapshot_ == nullptr || snapshot_.end < end_ - changes_.size()) {
    auto keys = std::make_shared<std::vector<KeyChange>>();
    keys->reserve(held_.size());
    for (const auto& [key, held] : held_) keys->push_back({key, held.kind});
    reader->snapshot_ = keys;
    snapshot_ = {keys, end_};
  }
  reader->begun_ = true;
  reader->next_ = snapshot_.end;
  reader->read_ = 0;
  reader->piece_ = 0;
}

bool KeyLog::Read(Reader* reader, v1::CacheEvent* event) const {
  event->Clear();
  event->set_epoch(options_.epoch);
  absl::ReleasableMutexLock lock(&mutex_);
  if (reader->snapshot_ == nullptr && (!reader->begun_ || reader->next_ < end_ - changes_.size())) {
    BeginSnapshot(reader);
  }
  event->set_sequence(reader->next_);
  if (reader->snapshot_ != nullptr) {
    lock.Release();
    event->set_key_tokens(static_cast<uint32_t>(options_.key_tokens));
    event->set_producer(options_.producer);
    event->set_piece(reader->piece_++);
    const std::vector<KeyChange>& keys = *reader->snapshot_;
    const size_t last = std::min(keys.size(), reader->read_ + options_.max_event_keys);
    for (; reader->read_ < last; ++reader->read_) AddTo(event, keys[reader->read_]);
    if (last == keys.size()) {
      reader->snapshot_ = nullptr;
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
