#include "server/gateway/routing/policy/known_prefixes.h"

#include <algorithm>

namespace aludel {

bool KnownPrefixes::Replace(size_t slot, absl::Span<const KeyChange> keys, int64_t key_tokens) {
  Forget(slot);
  if (caches_.size() <= slot) caches_.resize(slot + 1);
  caches_[slot].key_tokens = key_tokens;
  caches_[slot].keys.reserve(keys.size());
  return Apply(slot, keys);
}

bool KnownPrefixes::Apply(size_t slot, absl::Span<const KeyChange> changes) {
  if (!knows(slot)) return false;
  Cache& cache = caches_[slot];
  for (const KeyChange& change : changes) {
    if (change.removed()) {
      Remove(slot, change.key);
      continue;
    }
    if (size_ >= max_keys_) {
      Forget(slot);
      return false;
    }
    if (cache.keys.insert(change.key).second) ++size_;
    if (change.is_prefix_end() && cache.ends.insert(change.key).second) holders_[change.key].Add(slot);
  }
  return true;
}

void KnownPrefixes::Remove(size_t slot, uint64_t key) {
  Cache& cache = caches_[slot];
  size_ -= cache.keys.erase(key);
  if (cache.ends.erase(key) == 0) return;
  const auto found = holders_.find(key);
  if (found->second.Remove(slot) && found->second.empty()) holders_.erase(found);
}

void KnownPrefixes::Forget(size_t slot) {
  if (!knows(slot)) return;
  Cache& cache = caches_[slot];
  for (const uint64_t key : cache.ends) {
    const auto found = holders_.find(key);
    if (found->second.Remove(slot) && found->second.empty()) holders_.erase(found);
  }
  size_ -= cache.keys.size();
  cache = {};
}

void KnownPrefixes::Match(const PrefixKeys& keys, std::vector<int64_t>* tokens) const {
  for (size_t slot = 0; slot < std::min(tokens->size(), caches_.size()); ++slot) {
    if (knows(slot)) (*tokens)[slot] = 0;
  }
  if (holders_.empty()) return;
  seen_.assign((caches_.size() + SlotSet::kWordBits - 1) / SlotSet::kWordBits, 0);
  for (size_t i = keys.size(); i-- > 0;) {
    const auto found = holders_.find(keys.keys[i]);
    if (found == holders_.end()) continue;
    found->second.AddTo(&seen_, [&](size_t slot) { (*tokens)[slot] = AtMost(slot, keys.ends[i], keys); });
  }
}

int64_t KnownPrefixes::Cached(size_t slot, const PrefixKeys& keys) const {
  const Cache& cache = caches_[slot];
  // Every so many of the prompt's keys are the server's, and those that it has come first.
  const int64_t each = cache.key_tokens / kKeyTokens;
  int64_t had = 0, not_had = each > 0 ? static_cast<int64_t>(keys.blocks.size()) / each + 1 : 1;
  while (not_had - had > 1) {
    const int64_t middle = had + (not_had - had) / 2;
    (cache.keys.contains(keys.blocks[static_cast<size_t>(middle * each - 1)]) ? had : not_had) = middle;
  }
  return AtMost(slot, had * cache.key_tokens, keys);
}

int64_t KnownPrefixes::AtMost(size_t slot, int64_t tokens, const PrefixKeys& keys) const {
  const int64_t step = caches_[slot].key_tokens;
  return std::min(tokens, std::max<int64_t>(0, keys.tokens - 1) / step * step);
}

void PromptsUnderWay::Add(const PrefixKeys& keys, double until, double now) {
  Expire(now);
  if (prompts_.size() == kMaxPrompts) {
    Forget(prompts_.front());
    prompts_.pop_front();
  }
  for (const uint64_t key : keys.keys) ++counts_[key];
  prompts_.push_back({keys.keys, until});
}

void PromptsUnderWay::Drop(const PrefixKeys& keys) {
  const auto last = std::find_if(prompts_.rbegin(), prompts_.rend(),
                                 [&keys](const Prompt& prompt) { return prompt.keys == keys.keys; });
  if (last == prompts_.rend()) return;
  Forget(*last);
  prompts_.erase(std::next(last).base());
}

int64_t PromptsUnderWay::Match(const PrefixKeys& keys, double now) {
  Expire(now);
  const auto end = std::partition_point(keys.keys.begin(), keys.keys.end(),
                                        [this](uint64_t key) { return counts_.contains(key); });
  return end == keys.keys.begin() ? 0 : keys.ends[static_cast<size_t>(end - keys.keys.begin()) - 1];
}

void PromptsUnderWay::Expire(double now) {
  while (!prompts_.empty() && prompts_.front().until <= now) {
    Forget(prompts_.front());
    prompts_.pop_front();
  }
}

void PromptsUnderWay::Forget(const Prompt& prompt) {
  for (const uint64_t key : prompt.keys) {
    const auto found = counts_.find(key);
    if (--found->second == 0) counts_.erase(found);
  }
}

}  // namespace aludel
