#include "server/gateway/routing/policy/known_prefixes.h"

#include <algorithm>

namespace aludel {

KnownCache::KnownCache(absl::Span<const KeyChange> keys, int64_t key_tokens) : key_tokens_(key_tokens) {
  for (const KeyChange& change : keys) {
    if (keys_.Of(change.key).insert(change.key).second) ++size_;
    if (change.is_prefix_end()) ends_.Of(change.key).insert(change.key);
  }
}

std::vector<uint64_t> KnownCache::Ends() const {
  std::vector<uint64_t> ends;
  for (const auto& part : ends_.parts()) ends.insert(ends.end(), part.begin(), part.end());
  return ends;
}

bool KnownPrefixes::Replace(size_t slot, absl::Span<const KeyChange> keys, int64_t key_tokens) {
  Forget(slot);
  auto cache = std::make_unique<KnownCache>(keys, key_tokens);
  if (!has_room(cache->keys())) return false;
  Link(slot, cache->Ends());
  Put(slot, &cache);
  return true;
}

bool KnownPrefixes::Apply(size_t slot, absl::Span<const KeyChange> changes) {
  if (!knows(slot)) return false;
  KnownCache& cache = *caches_[slot];
  for (const KeyChange& change : changes) {
    if (change.removed()) {
      Remove(slot, change.key);
      continue;
    }
    if (!has_room(1)) return false;
    if (cache.keys_.Of(change.key).insert(change.key).second) {
      ++size_;
      ++cache.size_;
    }
    if (change.is_prefix_end() && cache.ends_.Of(change.key).insert(change.key).second) {
      LinkOne(slot, change.key);
    }
  }
  return true;
}

void KnownPrefixes::Remove(size_t slot, uint64_t key) {
  KnownCache& cache = *caches_[slot];
  if (cache.keys_.Of(key).erase(key) == 0) return;
  --size_;
  --cache.size_;
  if (cache.ends_.Of(key).erase(key) > 0) UnlinkOne(slot, key);
}

void KnownPrefixes::UnlinkOne(size_t slot, uint64_t key) {
  auto& part = holders_.Of(key);
  const auto found = part.find(key);
  if (found->second.Remove(slot) && found->second.empty()) part.erase(found);
}

void KnownPrefixes::Forget(size_t slot) {
  if (const std::unique_ptr<KnownCache> cache = Take(slot); cache != nullptr) Unlink(slot, cache->Ends());
}

std::unique_ptr<KnownCache> KnownPrefixes::Take(size_t slot) {
  if (!knows(slot)) return nullptr;
  size_ -= caches_[slot]->size_;
  return std::move(caches_[slot]);
}

void KnownPrefixes::Unlink(size_t slot, absl::Span<const uint64_t> ends) {
  for (const uint64_t key : ends) UnlinkOne(slot, key);
}

void KnownPrefixes::Link(size_t slot, absl::Span<const uint64_t> ends) {
  if (caches_.size() <= slot) caches_.resize(slot + 1);
  for (const uint64_t key : ends) LinkOne(slot, key);
}

void KnownPrefixes::Put(size_t slot, std::unique_ptr<KnownCache>* cache) {
  if (!has_room((*cache)->size_)) return;
  if (caches_.size() <= slot) caches_.resize(slot + 1);
  size_ += (*cache)->size_;
  caches_[slot] = std::move(*cache);
}

void KnownPrefixes::Match(const PrefixKeys& keys, std::vector<int64_t>* tokens) const {
  for (size_t slot = 0; slot < std::min(tokens->size(), caches_.size()); ++slot) {
    if (knows(slot)) (*tokens)[slot] = 0;
  }
  if (size_ == 0) return;
  seen_.assign((caches_.size() + SlotSet::kWordBits - 1) / SlotSet::kWordBits, 0);
  holders_.Prefetch(keys.keys);
  for (size_t i = keys.size(); i-- > 0;) {
    const auto& part = holders_.Of(keys.keys[i]);
    const auto found = part.find(keys.keys[i]);
    if (found == part.end()) continue;
    found->second.AddTo(&seen_, [&](size_t slot) {
      if (knows(slot)) (*tokens)[slot] = AtMost(slot, keys.ends[i], keys);
    });
  }
}

int64_t KnownPrefixes::Cached(size_t slot, const PrefixKeys& keys) const {
  const KnownCache& cache = *caches_[slot];
  // Every so many of the prompt's keys are the server's, and those that it has come first.
  const int64_t each = cache.key_tokens_ / kKeyTokens;
  int64_t had = 0, not_had = each > 0 ? static_cast<int64_t>(keys.blocks.size()) / each + 1 : 1;
  while (not_had - had > 1) {
    const int64_t middle = had + (not_had - had) / 2;
    const uint64_t key = keys.blocks[static_cast<size_t>(middle * each - 1)];
    (cache.keys_.Of(key).contains(key) ? had : not_had) = middle;
  }
  return AtMost(slot, had * cache.key_tokens_, keys);
}

int64_t KnownPrefixes::AtMost(size_t slot, int64_t tokens, const PrefixKeys& keys) const {
  const int64_t step = caches_[slot]->key_tokens_;
  return std::min(tokens, std::max<int64_t>(0, keys.tokens - 1) / step * step);
}

void PromptsUnderWay::Add(const PrefixKeys& keys, double until, double now) {
  Expire(now);
  if (prompts_.size() == kMaxPrompts) {
    Forget(prompts_.front());
    prompts_.pop_front();
  }
  for (const uint64_t key : keys.keys) ++counts_[key];
  // They come out of order where a queue was believed to be long, and is not.
  const auto later = std::upper_bound(prompts_.begin(), prompts_.end(), until,
                                      [](double time, const Prompt& prompt) { return time < prompt.until; });
  prompts_.insert(later, {keys.keys, until});
}

void PromptsUnderWay::Shorten(double until) {
  for (auto prompt = prompts_.rbegin(); prompt != prompts_.rend() && prompt->until > until; ++prompt) {
    prompt->until = until;
  }
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
