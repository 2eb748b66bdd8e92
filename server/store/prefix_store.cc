#include "server/store/prefix_store.h"

#include <iterator>
#include <memory>
#include <utility>

#include "transport/monotonic_clock.h"

namespace aludel {

StorePosition PrefixStore::Begin(const CodecSpec& codec, absl::string_view salt) const {
  StorePosition position{.key = RootKey(options_.producer, codec, salt)};
  absl::MutexLock lock(&mutex_);
  position.generation = generation_;
  return position;
}

std::vector<StoredChunk> PrefixStore::Find(absl::Span<const int32_t> prompt, absl::Duration max_age,
                                           StorePosition* at) {
  std::vector<StoredChunk> chunks;
  const absl::Time since = MonotonicNow() - max_age;
  absl::MutexLock lock(&mutex_);
  if (at->generation != generation_) return chunks;
  std::vector<Node*> used;
  while (at->tokens < static_cast<int64_t>(prompt.size())) {
    Node* node = index_.FindNext(at->key, prompt.subspan(at->tokens), since);
    if (node == nullptr) break;
    at->key = node->key;
    at->tokens += node->tokens;
    chunks.push_back({*at, node->memory});
    used.push_back(node);
  }
  // From the last to the first: what lies in front is always the younger one.
  for (auto node = used.rbegin(); node != used.rend(); ++node) {
    order_.splice(order_.begin(), order_, (*node)->order);
  }
  return chunks;
}

bool PrefixStore::Put(absl::Span<const int32_t> prompt, int64_t end, std::vector<StoredFrame> frames,
                      StorePosition* at) {
  const absl::Span<const int32_t> tokens = prompt.subspan(at->tokens, end - at->tokens);
  const size_t bytes = StoredWeight(static_cast<int64_t>(tokens.size()), frames);
  if (bytes > max_chunk_bytes()) return false;
  ChunkHasher hasher;
  hasher.Start(at->key);
  hasher.Add(tokens);
  const ChunkKey key = hasher.Key();
  auto kept = std::make_shared<const std::vector<StoredFrame>>(std::move(frames));

  absl::MutexLock lock(&mutex_);
  if (at->generation != generation_) return false;
  // Behind a chunk that is gone nothing would be found.
  if (at->tokens > 0) {
    const Node* before = index_.Find(at->key);
    if (before == nullptr || !before->stored()) return false;
  }
  Node* node =
      index_.Add(key, at->key, static_cast<uint32_t>(at->tokens), static_cast<uint32_t>(tokens.size()));
  node->added = MonotonicNow();
  if (node->memory == nullptr) KeepInMemory(node, std::move(kept), bytes);
  *at = {key, end, at->generation};
  Evict();
  return true;
}

void PrefixStore::KeepInMemory(Node* node, StoredFrames frames, size_t bytes) {
  node->memory = std::move(frames);
  node->memory_bytes = bytes;
  // As young as the chunk in front of it, and gone before that one is.
  const Node* before = index_.Find(node->before);
  const bool follows = before != nullptr && before->memory != nullptr;
  node->order = order_.insert(follows ? std::next(before->order) : order_.begin(), node);
  stats_.bytes += bytes;
  ++stats_.entries;
}

void PrefixStore::DropFromMemory(Node* node) {
  stats_.bytes -= node->memory_bytes;
  --stats_.entries;
  order_.erase(node->order);
  node->memory = nullptr;
  index_.Drop(node);
}

void PrefixStore::Evict() {
  while (stats_.bytes > options_.memory_bytes) {
    ++stats_.evictions;
    DropFromMemory(order_.back());
  }
}

void PrefixStore::CountLookup(int64_t found_tokens, int64_t prompt_tokens) {
  absl::MutexLock lock(&mutex_);
  stats_.hit_tokens += static_cast<uint64_t>(found_tokens);
  ++(found_tokens == prompt_tokens ? stats_.hits : found_tokens > 0 ? stats_.partial_hits : stats_.misses);
}

void PrefixStore::Clear() {
  absl::MutexLock lock(&mutex_);
  ++generation_;
  order_.clear();
  index_.Clear();
  stats_.bytes = 0;
  stats_.entries = 0;
}

PrefixStore::Stats PrefixStore::stats() const {
  absl::MutexLock lock(&mutex_);
  return stats_;
}

}  // namespace aludel
