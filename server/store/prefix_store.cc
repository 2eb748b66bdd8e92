#include "server/store/prefix_store.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "transport/monotonic_clock.h"

namespace aludel {

PrefixStore::PrefixStore(Options options)
    : options_(std::move(options)),
      tenants_(options_.quota),
      pins_(std::min(options_.pinned_bytes, options_.memory_bytes / 2)) {
  {
    absl::MutexLock lock(&mutex_);
    index_.Watch(options_.watcher);
  }
  if (enabled() && options_.disk.has_value()) OpenDisk();
  if (enabled() && options_.remote.has_value()) OpenRemote();
}

PrefixStore::~PrefixStore() {
  readers_ = nullptr;
  writer_ = nullptr;
  CloseRemote();
}

StorePosition PrefixStore::Begin(const CodecSpec& codec, absl::string_view salt) const {
  StorePosition position{
      .key = RootKey(options_.producer, codec, salt), .encoder = EncoderTag(codec), .salt = SaltTag(salt)};
  absl::MutexLock lock(&mutex_);
  position.generation = lookups_;
  return position;
}

std::vector<StoredChunk> PrefixStore::Find(absl::Span<const int32_t> prompt, absl::Duration max_age,
                                           StorePosition* at) {
  std::vector<StoredChunk> chunks;
  const absl::Time since = MonotonicNow() - max_age;
  ChunkHasher hasher;
  while (at->tokens < static_cast<int64_t>(prompt.size())) {
    const std::vector<ChunkKey> candidates = Candidates(at->key, prompt.subspan(at->tokens), hasher);
    if (!Take(candidates, prompt, since, at, &chunks)) break;
  }
  absl::MutexLock lock(&mutex_);
  if (at->generation != lookups_) return chunks;
  // From the last to the first: what lies in front is always the younger one.
  for (auto chunk = chunks.rbegin(); chunk != chunks.rend(); ++chunk) {
    Node* node = index_.Find(chunk->end.key);
    if (node == nullptr || node->memory == nullptr) continue;
    order_.splice(order_.begin(), order_, node->order);
    tenants_.Touch(node);
  }
  return chunks;
}

std::vector<ChunkKey> PrefixStore::Candidates(const ChunkKey& before, absl::Span<const int32_t> rest,
                                              ChunkHasher& hasher) {
  std::vector<ChunkKey> candidates;
  std::vector<uint32_t> stems;
  {
    absl::MutexLock lock(&mutex_);
    stems = index_.StemsBehind(before);
  }
  if (stems.empty()) return candidates;
  hasher.Start(before);
  size_t hashed = 0;
  const auto key_of = [&](size_t tokens) {
    hasher.Add(rest.subspan(hashed, tokens - hashed));
    hashed = tokens;
    return hasher.Key();
  };
  for (const uint32_t stem_tokens : stems) {
    if (stem_tokens > rest.size()) break;
    const ChunkKey stem_key = stem_tokens == 0 ? ChunkKey() : key_of(stem_tokens);
    std::vector<uint32_t> lengths;
    {
      absl::MutexLock lock(&mutex_);
      lengths = index_.LengthsBehind(before, stem_tokens, StemOf(stem_key));
    }
    for (const uint32_t tokens : lengths) {
      if (tokens > rest.size()) break;
      if (StemTokens(tokens) != stem_tokens) continue;  // two stems with one id
      candidates.push_back(tokens == stem_tokens ? stem_key : key_of(tokens));
    }
  }
  return candidates;
}

PrefixStore::Node* PrefixStore::Longest(absl::Span<const ChunkKey> candidates, absl::Time since) {
  for (auto key = candidates.rbegin(); key != candidates.rend(); ++key) {
    Node* node = index_.Find(*key);
    if (node != nullptr && node->stored() && node->added >= since) return node;
  }
  return nullptr;
}

bool PrefixStore::Take(absl::Span<const ChunkKey> candidates, absl::Span<const int32_t> prompt,
                       absl::Time since, StorePosition* at, std::vector<StoredChunk>* chunks) {
  absl::MutexLock lock(&mutex_);
  if (at->generation != lookups_) return false;
  Node* node = Longest(candidates, since);
  if (node == nullptr) return false;
  if (node->memory == nullptr && node->moving == nullptr && MonotonicNow() < no_reads_before_) return false;
  const int64_t begin = at->tokens;
  at->key = node->key;
  at->tokens += node->tokens;
  ++node->requests;
  node->wanted = true;
  WriteLater(node, prompt);
  ShareLater(node, prompt);
  chunks->push_back({*at, begin, node->memory != nullptr ? node->memory : node->moving, node->disk});
  return true;
}

bool PrefixStore::Put(absl::Span<const int32_t> prompt, int64_t end, std::vector<StoredFrame> frames,
                      StorePosition* at) {
  const absl::Span<const int32_t> tokens = prompt.subspan(at->tokens, end - at->tokens);
  if (StoredWeight(static_cast<int64_t>(tokens.size()), frames) > max_chunk_bytes()) return false;
  const ChunkHasher::Name name = ChunkHasher().NameOf(at->key, tokens);
  auto kept = std::make_shared<const std::vector<StoredFrame>>(std::move(frames));

  absl::MutexLock lock(&mutex_);
  if (at->generation != lookups_) return false;
  // Behind a chunk that is gone nothing would be found.
  if (at->tokens > 0) {
    const Node* before = index_.Find(at->key);
    if (before == nullptr || !before->stored()) return false;
  }
  Node* node = index_.Add({.key = name.key,
                           .before = at->key,
                           .encoder = at->encoder,
                           .salt = at->salt,
                           .token_begin = static_cast<uint32_t>(at->tokens),
                           .tokens = static_cast<uint32_t>(tokens.size()),
                           .stem = name.stem});
  node->added = MonotonicNow();
  ++node->requests;
  if (node->memory == nullptr) KeepInMemory(node, std::move(kept));
  at->key = name.key;
  at->tokens = end;
  WriteLater(node, prompt);
  ShareLater(node, prompt, outdated_.erase(node->key) > 0);
  Evict(TenantOf(at->salt));
  return true;
}

void PrefixStore::KeepInMemory(Node* node, StoredFrames frames) {
  node->memory_bytes = StoredWeight(node->tokens, *frames);
  node->memory = std::move(frames);
  // As young as the chunk in front of it, and gone before that one is.
  const Node* before = index_.Find(node->before);
  const bool follows = before != nullptr && before->memory != nullptr;
  node->order = order_.insert(follows ? std::next(before->order) : order_.begin(), node);
  tenants_.AddMemory(node, follows ? before : nullptr);
  index_.Stored(node);
  stats_.memory.bytes += node->memory_bytes;
  ++stats_.memory.entries;
}

void PrefixStore::DropFromMemory(Node* node) {
  stats_.memory.bytes -= node->memory_bytes;
  --stats_.memory.entries;
  tenants_.RemoveMemory(node);
  order_.erase(node->order);
  node->memory = nullptr;
  node->over_quota = false;
  index_.Drop(node);
}

PrefixStore::Node* PrefixStore::LeastUsed(StoreIndex::Order& order) {
  const absl::Time now = MonotonicNow();
  for (size_t turns = order.size(); turns > 0; --turns) {
    if (!pins_.IsPinned(order.back()->key, now)) return order.back();
    order.splice(order.begin(), order, std::prev(order.end()));
  }
  return nullptr;
}

void PrefixStore::KeepQuota(TenantTag tenant) {
  while (StoreIndex::Order* order = tenants_.OverMemory(tenant)) {
    Node* node = LeastUsed(*order);
    if (node == nullptr) break;
    ++stats_.memory.over_quota;
    DropFromMemory(node);
  }
  // Without a tombstone: where it is found again after a restart, so is what is younger, and the quota.
  while (Node* node = tenants_.OverDisk(tenant)) {
    ++stats_.disk.over_quota;
    node->over_quota = node->memory != nullptr;  // or each hit would write it again
    DropFromDisk(node);
  }
}

void PrefixStore::Evict(TenantTag tenant) {
  KeepQuota(tenant);
  while (stats_.memory.bytes > options_.memory_bytes) {
    Node* node = LeastUsed(order_);
    if (node == nullptr) break;
    ++stats_.memory.evictions;
    DropFromMemory(node);
  }
}

void PrefixStore::CountLookup(const Found& found, int64_t prompt_tokens) {
  const int64_t tokens = found.memory_tokens + found.disk_tokens + found.remote_tokens;
  absl::MutexLock lock(&mutex_);
  stats_.memory.hit_tokens += static_cast<uint64_t>(found.memory_tokens);
  stats_.disk.hit_tokens += static_cast<uint64_t>(found.disk_tokens);
  stats_.remote.hit_tokens += static_cast<uint64_t>(found.remote_tokens);
  ++(tokens == prompt_tokens ? stats_.hits : tokens > 0 ? stats_.partial_hits : stats_.misses);
}

StoreStats PrefixStore::stats() const {
  const size_t queued = writer_ == nullptr ? 0 : writer_->bytes();
  const size_t shared = sharer_ == nullptr ? 0 : sharer_->bytes();
  const bool remote_open = remote_ != nullptr && remote_->usable();
  absl::MutexLock lock(&mutex_);
  StoreStats stats = stats_;
  stats.queued_bytes = queued;
  stats.memory.configured = stats.memory.open = enabled();
  stats.disk.configured = options_.disk.has_value();
  stats.remote.configured = options_.remote.has_value();
  stats.remote.open = remote_open;
  stats.remote.queued_bytes = shared;
  return stats;
}

}  // namespace aludel
