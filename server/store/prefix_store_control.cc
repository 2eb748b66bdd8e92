// The operator's side of the prefix store: what is pinned, cleared in part, and told of it.

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "runtime/status_macros.h"
#include "server/store/prefix_store.h"
#include "spdlog/spdlog.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// Of one record.
constexpr size_t kTombstones = 4096;

}  // namespace

std::vector<StoredChunk> PrefixStore::Peek(absl::Span<const int32_t> prompt, StorePosition* at) {
  std::vector<StoredChunk> chunks;
  ChunkHasher hasher;
  while (at->tokens < static_cast<int64_t>(prompt.size())) {
    const std::vector<ChunkKey> candidates = Candidates(at->key, prompt.subspan(at->tokens), hasher);
    absl::MutexLock lock(&mutex_);
    const Node* node = Longest(candidates, absl::InfinitePast(), at->planes);
    if (node == nullptr) break;
    const int64_t begin = at->tokens;
    at->key = node->key;
    at->tokens += node->tokens;
    chunks.push_back({*at, begin, FramesOf(*node, at->planes), node->disk});
  }
  return chunks;
}

void PrefixStore::Prefetch(std::vector<int32_t> prompt, const StorePosition& at,
                           std::function<void(int64_t)> done) {
  const auto tokens = std::make_shared<const std::vector<int32_t>>(std::move(prompt));
  PeekEverywhere(*tokens, at, [this, tokens, done](const std::vector<StoredChunk>& chunks) {
    done(LoadAll(chunks, *tokens));
  });
}

int64_t PrefixStore::LoadAll(absl::Span<const StoredChunk> chunks, absl::Span<const int32_t> prompt) {
  int64_t tokens = 0;
  for (const StoredChunk& chunk : chunks) {
    if (chunk.frames != nullptr) continue;
    tokens += chunk.end.tokens - chunk.token_begin;
    Load(chunk, prompt, [](const StoredFrames&) {});
  }
  return tokens;
}

absl::StatusOr<int64_t> PrefixStore::Pin(absl::Span<const int32_t> prompt, StorePosition at,
                                         absl::Duration ttl) {
  const std::vector<StoredChunk> chunks = Peek(prompt, &at);
  int64_t pinned_tokens = 0;
  {
    absl::MutexLock lock(&mutex_);
    std::vector<Pins::Wish> wishes;
    std::vector<const Node*> nodes;
    for (const StoredChunk& chunk : chunks) {
      const Node* node = index_.Find(chunk.end.key);
      if (node == nullptr || !node->serves(at.planes)) break;  // it went since it was found, or was cut
      const int64_t tokens = chunk.end.tokens - chunk.token_begin;
      wishes.push_back({chunk.end.key, chunk.frames != nullptr ? StoredWeight(tokens, *chunk.frames)
                                                               : chunk.disk.weight(tokens)});
      nodes.push_back(node);
      pinned_tokens = chunk.end.tokens;
    }
    const absl::Time now = MonotonicNow();
    ALUDEL_RETURN_IF_ERROR(pins_.Pin(wishes, now + ttl, now));
    RenewLater(nodes);
  }
  LoadAll(chunks, prompt);
  return pinned_tokens;
}

int64_t PrefixStore::Unpin(absl::Span<const int32_t> prompt, StorePosition at) {
  int64_t tokens = 0;
  at.planes = kFewestPlanes;
  const std::vector<StoredChunk> chunks = Peek(prompt, &at);
  absl::MutexLock lock(&mutex_);
  for (const StoredChunk& chunk : chunks) {
    if (EndPin(chunk.end.key)) tokens += chunk.end.tokens - chunk.token_begin;
  }
  if (chunks.empty()) return tokens;
  for (const ChunkKey& key : pins_.Keys()) {
    const Node* const pinned = index_.Find(key);
    const Node* node = pinned;
    while (node != nullptr && node->key != at.key && node->tokens > 0) node = index_.Find(node->before);
    if (node != nullptr && node->key == at.key && EndPin(key)) tokens += pinned->tokens;
  }
  return tokens;
}

bool PrefixStore::EndPin(const ChunkKey& key) {
  if (Node* const node = index_.Find(key); node != nullptr && node->memory != nullptr) {
    utility_.Moved(node, MemoryOrder::Now());
  }
  return pins_.Unpin(key);
}

absl::Status PrefixStore::SetQuota(TenantTag tenant, const QuotaChange& change) {
  absl::MutexLock lock(&mutex_);
  TenantShares::Quota quota = tenants_.QuotaOf(tenant);
  quota.memory_bytes = change.memory_bytes.value_or(quota.memory_bytes);
  quota.disk_bytes = change.disk_bytes.value_or(quota.disk_bytes);
  ALUDEL_RETURN_IF_ERROR(tenants_.SetQuota(tenant, quota));
  KeepQuota(tenant);
  return absl::OkStatus();
}

std::vector<TenantReport> PrefixStore::Tenants() const {
  std::vector<TenantReport> reports;
  absl::MutexLock lock(&mutex_);
  for (const auto& [tenant, share] : tenants_.shares()) {
    reports.push_back({tenant, share.memory_bytes, share.memory.size(), share.disk_bytes, share.disk.size(),
                       tenants_.QuotaOf(tenant)});
  }
  return reports;
}

std::vector<StoredChunkReport> PrefixStore::List(const StoreFilter& filter, size_t limit) const {
  std::vector<StoredChunkReport> reports;
  const absl::Time now = MonotonicNow();
  absl::MutexLock lock(&mutex_);
  const auto add = [&](const Node& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!filter.Matches(node.salt, node.encoder)) return;
    const uint64_t on_disk = node.disk.segment == nullptr ? 0 : node.disk.record_bytes();
    const size_t in_memory = node.memory == nullptr ? 0 : node.memory_bytes;
    reports.push_back({node.key, node.encoder, node.salt, node.token_begin, node.tokens, in_memory, on_disk,
                       IsAtRemote(node, now), std::max(pins_.Until(node.key) - now, absl::ZeroDuration())});
  };
  for (const auto& [tenant, share] : tenants_.shares()) {
    if (filter.tenant && *filter.tenant != tenant) continue;
    for (const Node* node : share.memory) {
      if (reports.size() >= limit) return reports;
      add(*node);
    }
    for (auto node = share.disk.rbegin(); node != share.disk.rend(); ++node) {
      if (reports.size() >= limit) return reports;
      if ((*node)->memory == nullptr) add(**node);
    }
  }
  return reports;
}

bool PrefixStore::Clearing::Has(const ChunkEntry& entry) const {
  if (!filter.Matches(entry.salt, entry.encoder)) return false;
  return !filter.from || *filter.from == entry.key || keys.contains(entry.key) || keys.contains(entry.before);
}

bool PrefixStore::IsBeingCleared(const ChunkEntry& entry) const {
  return std::any_of(clearing_.begin(), clearing_.end(),
                     [&](const Clearing& clearing) { return clearing.Has(entry); });
}

size_t PrefixStore::ClearSome(const StoreFilter& filter, std::function<void(const absl::Status&)> done) {
  size_t chunks = 0;
  {
    absl::MutexLock lock(&mutex_);
    ++lookups_;  // what was looked up before is not stored any more, whatever it is: it may be of these
    if (filter.tenant) agents_.Forget(*filter.tenant);
    Clearing clearing = {filter, KeysOf(filter)};
    done = AlsoAtRemote(filter, clearing.keys, std::move(done));
    auto on_disk = std::make_shared<absl::flat_hash_set<ChunkKey>>();
    for (const ChunkKey& key : clearing.keys) {
      pins_.Unpin(key);
      const Node* node = index_.Find(key);
      if (node != nullptr && node->stored()) ++chunks;
      if (DropEverywhere(key)) on_disk->insert(key);
    }
    if (writer_ != nullptr) {
      clearing_.push_back(std::move(clearing));
      writer_->Run([this, on_disk, done] { done(ForgetOnDisk(std::move(*on_disk))); });
      return chunks;
    }
  }
  done(absl::OkStatus());
  return chunks;
}

absl::flat_hash_set<ChunkKey> PrefixStore::KeysOf(const StoreFilter& filter) {
  std::vector<const Node*> matching;
  index_.ForEach([&](const Node& node) {
    if (node.tokens > 0 && filter.Matches(node.salt, node.encoder)) matching.push_back(&node);
  });
  absl::flat_hash_set<ChunkKey> keys;
  if (filter.from) {
    keys.insert(*filter.from);
    // In the order of a prompt, so that what follows one comes after it.
    std::sort(matching.begin(), matching.end(),
              [](const Node* a, const Node* b) { return a->token_begin < b->token_begin; });
  }
  for (const Node* node : matching) {
    if (!filter.from || keys.contains(node->before)) keys.insert(node->key);
  }
  return keys;
}

bool PrefixStore::DropEverywhere(const ChunkKey& key) {
  Node* node = index_.Find(key);
  if (node == nullptr) return false;
  const bool on_disk = node->disk.segment != nullptr || node->moving != nullptr;
  // Each of these may be the node's end.
  if (node->memory != nullptr) DropFromMemory(node);
  node = index_.Find(key);
  if (node != nullptr) DropFromDisk(node);
  node = index_.Find(key);
  if (node == nullptr) return on_disk;
  node->moving = nullptr;
  index_.Drop(node);
  return on_disk;
}

absl::Status PrefixStore::ForgetOnDisk(absl::flat_hash_set<ChunkKey> keys) {
  absl::MutexLock disk_lock(&disk_mutex_);
  {
    absl::MutexLock lock(&mutex_);
    clearing_.pop_front();
    // Records that are found no more, such as those that went for a quota, would be found after a restart.
    for (const auto& [number, held] : segments_) {
      for (const ChunkKey& key : held) {
        const Node* node = index_.Find(key);
        if (node == nullptr || node->disk.segment == nullptr) keys.insert(key);
      }
    }
  }
  const std::vector<ChunkKey> ordered(keys.begin(), keys.end());
  absl::Status status;
  for (size_t i = 0; i < ordered.size() && status.ok(); i += kTombstones) {
    const auto some = absl::MakeConstSpan(ordered).subspan(i, kTombstones);
    const absl::StatusOr<bool> room =
        MakeRoom(RoundUpToBlock(kRecordHeadBytes + some.size() * sizeof(StoreKey)), some.size());
    status = room.status();
    if (status.ok() && !*room)
      status = absl::ResourceExhaustedError("no room on disk to note what was cleared");
    if (status.ok()) status = disk_->AppendTombstones(some);
  }
  if (status.ok()) status = disk_->Sync();
  if (!status.ok()) spdlog::error("the prefix store: {}", std::string(status.message()));
  absl::MutexLock lock(&mutex_);
  stats_.disk.bytes = disk_->bytes();
  if (!status.ok()) return status;
  // They have their tombstones: the next clear is not to write them again.
  for (auto& [number, held] : segments_) {
    held.erase(
        std::remove_if(held.begin(), held.end(), [&](const ChunkKey& key) { return keys.contains(key); }),
        held.end());
  }
  return status;
}

}  // namespace aludel
