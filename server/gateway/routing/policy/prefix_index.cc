#include "server/gateway/routing/policy/prefix_index.h"

#include <algorithm>

namespace aludel {
void PrefixLru::Unlink(uint32_t at) {
  const Node& node = nodes_[at];
  (node.older == kNone ? oldest_ : nodes_[node.older].newer) = node.newer;
  (node.newer == kNone ? newest_ : nodes_[node.newer].older) = node.older;
}

void PrefixLru::LinkNewest(uint32_t at) {
  nodes_[at].older = newest_;
  nodes_[at].newer = kNone;
  (newest_ == kNone ? oldest_ : nodes_[newest_].newer) = at;
  newest_ = at;
}

void PrefixLru::Touch(const PrefixKeys& keys, size_t count, std::vector<uint64_t>* added,
                      std::vector<uint64_t>* evicted) {
  const size_t used = std::min(count, keys.size());
  for (size_t i = 0; i < used; ++i) index_.prefetch(keys.keys[i]);
  // The longest first: what goes later is then the end of a beginning and not its start.
  for (size_t i = used; i-- > 0;) {
    const auto [entry, is_new] = index_.try_emplace(keys.keys[i], 0);
    if (!is_new) {
      Unlink(entry->second);
      LinkNewest(entry->second);
      continue;
    }
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.emplace_back();
    }
    const uint32_t at = entry->second = free_.back();
    free_.pop_back();
    nodes_[at].key = keys.keys[i];
    nodes_[at].tokens = keys.ends[i] - (i == 0 ? 0 : keys.ends[i - 1]);
    tokens_ += nodes_[at].tokens;
    LinkNewest(at);
    added->push_back(keys.keys[i]);
  }
  while (tokens_ > capacity_ && oldest_ != kNone) {
    const uint32_t at = oldest_;
    Unlink(at);
    tokens_ -= nodes_[at].tokens;
    index_.erase(nodes_[at].key);
    evicted->push_back(nodes_[at].key);
    free_.push_back(at);
  }
}

void PrefixLru::Erase(uint64_t key) {
  const auto found = index_.find(key);
  if (found == index_.end()) return;
  const uint32_t at = found->second;
  Unlink(at);
  tokens_ -= nodes_[at].tokens;
  free_.push_back(at);
  index_.erase(found);
}

std::vector<uint64_t> PrefixLru::keys() const {
  std::vector<uint64_t> keys;
  keys.reserve(index_.size());
  for (const auto& [key, at] : index_) keys.push_back(key);
  return keys;
}

int64_t PrefixLru::Match(const PrefixKeys& keys) const {
  // What is here is here from its start on, for longer beginnings go first.
  const auto end = std::partition_point(keys.keys.begin(), keys.keys.end(),
                                        [this](uint64_t key) { return index_.contains(key); });
  return end == keys.keys.begin() ? 0 : keys.ends[static_cast<size_t>(end - keys.keys.begin()) - 1];
}

size_t PrefixIndex::keys() const {
  size_t count = 0;
  for (const auto& part : holders_.parts()) count += part.size();
  return count;
}

void PrefixIndex::Forget(size_t slot, absl::Span<const uint64_t> keys) {
  holders_.Prefetch(keys);
  for (const uint64_t key : keys) {
    auto& part = holders_.Of(key);
    const auto found = part.find(key);
    if (found != part.end() && found->second.Remove(slot) && found->second.empty()) part.erase(found);
  }
}

void PrefixIndex::Reset(size_t slot, int64_t capacity_tokens) {
  while (caches_.size() <= slot) caches_.emplace_back(0);
  Forget(slot, caches_[slot].keys());
  caches_[slot] = PrefixLru(capacity_tokens);
}

void PrefixIndex::SetCapacity(size_t slot, int64_t capacity_tokens) {
  caches_[slot].SetCapacity(capacity_tokens);
}

void PrefixIndex::Insert(size_t slot, const PrefixKeys& keys, size_t count) {
  added_.clear();
  evicted_.clear();
  caches_[slot].Touch(keys, count, &added_, &evicted_);
  holders_.Prefetch(added_);
  for (const uint64_t key : added_) holders_.Of(key)[key].Add(slot);
  Forget(slot, evicted_);
}

void PrefixIndex::Erase(size_t slot, const PrefixKeys& keys, int64_t tokens) {
  const auto longer = std::upper_bound(keys.ends.begin(), keys.ends.end(), tokens) - keys.ends.begin();
  const absl::Span<const uint64_t> gone = absl::MakeConstSpan(keys.keys).subspan(static_cast<size_t>(longer));
  for (const uint64_t key : gone) caches_[slot].Erase(key);
  Forget(slot, gone);
}

void PrefixIndex::Match(const PrefixKeys& keys, std::vector<int64_t>* tokens) const {
  tokens->assign(caches_.size(), 0);
  seen_.assign((caches_.size() + SlotSet::kWordBits - 1) / SlotSet::kWordBits, 0);
  holders_.Prefetch(keys.keys);
  for (size_t i = keys.size(); i-- > 0;) {
    const auto& part = holders_.Of(keys.keys[i]);
    const auto found = part.find(keys.keys[i]);
    if (found == part.end()) continue;
    found->second.AddTo(&seen_, [&](size_t slot) { (*tokens)[slot] = keys.ends[i]; });
  }
}

}  // namespace aludel
