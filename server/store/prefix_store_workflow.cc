// What workflows of agents say of what will be asked for: it is kept for longer, and is in memory in time. A tenant's
// hints cost no other tenant a chunk: room for what is expected is made among that tenant's own.

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/time/clock.h"
#include "server/store/prefix_store.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// An agent that has not asked by then is not waited for any longer.
constexpr absl::Duration kExpectedFor = absl::Minutes(10);
// So many steps before its turn, an agent's prompt is read into memory.
constexpr size_t kReadSteps = 2;
// At a time, so that what requests wait for is read meanwhile; and that wait for their turn.
constexpr int kReadsAtOnce = 2;
constexpr size_t kMaxReads = 512;

}  // namespace

void PrefixStore::Remember(const WorkflowStep& step, const StorePosition& end) {
  AgentPrompts::Prompt prompt{.encoder = end.encoder};
  absl::MutexLock lock(&mutex_);
  if (end.generation != lookups_) return;
  for (const Node* node = index_.Find(end.key); node != nullptr && node->tokens > 0;
       node = index_.Find(node->before)) {
    prompt.chunks.push_back({node->key, node->token_begin});
  }
  std::reverse(prompt.chunks.begin(), prompt.chunks.end());
  if (prompt.chunks.empty()) return;
  agents_.Remember(end.salt, step.id, step.agent, std::move(prompt), MonotonicNow());
}

void PrefixStore::Expect(const WorkflowStep& step, const StoreTag& salt) {
  EndExpecting(step, salt);
  for (size_t i = 0; i < step.next.size(); ++i) {
    AgentPrompts::Prompt prompt;
    {
      absl::MutexLock lock(&mutex_);
      prompt = agents_.Find(salt, step.id, step.next[i], MonotonicNow());
    }
    if (!prompt.chunks.empty()) ExpectChunks(salt, prompt, i + 1);
  }
}

void PrefixStore::EndExpecting(const WorkflowStep& step, const StoreTag& salt) {
  absl::MutexLock lock(&mutex_);
  const TenantTag tenant = TenantOf(salt);
  for (const auto& chunk : agents_.Find(salt, step.id, step.agent, MonotonicNow()).chunks) {
    agents_.EndExpecting(tenant, chunk.key);
    if (Node* node = index_.Find(chunk.key); node != nullptr) node->expected_until = absl::InfinitePast();
  }
}

void PrefixStore::ExpectChunks(const StoreTag& salt, const AgentPrompts::Prompt& prompt, size_t steps) {
  absl::MutexLock lock(&mutex_);
  const absl::Time now = MonotonicNow();
  std::vector<Pins::Wish> wishes;
  for (const AgentPrompts::Chunk& chunk : prompt.chunks) {
    const Node* node = index_.Find(chunk.key);
    if (node == nullptr || !node->stored()) continue;
    const bool on_disk = node->memory == nullptr && node->disk.segment != nullptr;
    wishes.push_back({chunk.key, on_disk ? node->disk.weight(node->tokens) : node->memory_bytes});
  }
  if (!agents_.Expect(TenantOf(salt), wishes, now + kExpectedFor, now)) {
    stats_.expected.no_room += prompt.chunks.size();
    return;
  }
  for (const AgentPrompts::Chunk& chunk : prompt.chunks) {
    Node* node = index_.Find(chunk.key);
    const bool stored = node != nullptr && node->stored();
    if (stored) node->expected_until = now + kExpectedFor;
    if (stored && (node->memory != nullptr || node->moving != nullptr)) {
      ++stats_.expected.kept;
    } else if (steps > kReadSteps) {
      continue;
    } else if (expected_reads_.size() >= kMaxReads) {
      ++stats_.expected.no_room;
    } else {
      expected_reads_.push_back({.chunk = chunk,
                                 .salt = salt,
                                 .encoder = prompt.encoder,
                                 .disk = stored ? node->disk : DiskPlace(),
                                 .generation = lookups_});
    }
  }
  ReadNext();
}

void PrefixStore::ReadNext() {
  while (!expected_reads_.empty() && reading_expected_ < kReadsAtOnce) {
    const ExpectedRead read = std::move(expected_reads_.front());
    expected_reads_.pop_front();
    const bool on_disk = read.disk.segment != nullptr;
    // A tier that is left alone for being slow is not asked for what is only expected, either.
    const bool is_left_alone = MonotonicNow() < (on_disk ? no_reads_before_ : no_remote_before_);
    ReadPool* pool = remote_ != nullptr && remote_->usable() ? remote_readers_.get() : nullptr;
    if (on_disk) pool = readers_.get();
    const Node* const node = index_.Find(read.chunk.key);
    if (node != nullptr && node->memory != nullptr) {
      ++stats_.expected.kept;  // a hint before this one, or a request
    } else if (pool == nullptr || is_left_alone || read.generation != lookups_) {
      ++stats_.expected.lost;
    } else if (pool->Post([this, read] { ReadExpected(read); })) {
      ++reading_expected_;
    } else {
      ++stats_.expected.no_room;
    }
  }
}

void PrefixStore::ReadExpected(const ExpectedRead& read) {
  const bool on_disk = read.disk.segment != nullptr;
  const absl::Time begun = MonotonicNow();
  absl::StatusOr<LoadedChunk> loaded = on_disk
                                           ? LoadChunk(read.disk.segment->file(), read.disk.segment->number(),
                                                       {.key = read.chunk.key,
                                                        .block = read.disk.block,
                                                        .meta_bytes = read.disk.meta_bytes,
                                                        .payload_bytes = read.disk.payload_bytes})
                                           : remote_->Load(read.salt, read.encoder, read.chunk.key);
  if (loaded.ok()) loaded = Checked(*std::move(loaded), read);
  absl::MutexLock lock(&mutex_);
  --reading_expected_;
  if (loaded.ok() && read.generation == lookups_) {
    const double seconds = absl::ToDoubleSeconds(MonotonicNow() - begun);
    ++(on_disk ? stats_.loads : stats_.remote.loads);
    (on_disk ? stats_.load_seconds : stats_.remote.load_seconds) += seconds;
    if (on_disk) loaded_bytes_ += static_cast<double>(loaded->meta.entry.record_bytes());
    ++(KeepExpected(*loaded, on_disk) ? stats_.expected.loaded : stats_.expected.no_room);
  } else {
    ++stats_.expected.lost;  // what is wrong with it, the look-up that wants it finds out and counts
  }
  ReadNext();
}

absl::StatusOr<LoadedChunk> PrefixStore::Checked(LoadedChunk loaded, const ExpectedRead& read) {
  const ChunkEntry& entry = loaded.meta.entry;
  const ChunkHasher::Name name = ChunkHasher().NameOf(entry.before, loaded.meta.tokens);
  if (name.key != read.chunk.key || name.stem != entry.stem || entry.token_begin != read.chunk.token_begin ||
      entry.encoder != read.encoder || entry.salt != read.salt) {
    return absl::DataLossError("record: of other tokens, or of another encoder or salt");
  }
  return loaded;
}

bool PrefixStore::KeepExpected(const LoadedChunk& loaded, bool on_disk) {
  const ChunkEntry& entry = loaded.meta.entry;
  Node* node = index_.Find(entry.key);
  if (node != nullptr && node->memory != nullptr) return true;
  // From disk it is what is there; it may have gone since.
  if (on_disk && (node == nullptr || !node->stored())) return false;
  const TenantTag tenant = TenantOf(entry.salt);
  const absl::Time now = MonotonicNow();
  StoredFrames frames = ToFrames(loaded);
  const Pins::Wish wish = {entry.key, StoredWeight(entry.tokens, *frames)};
  if (!on_disk && !agents_.Expect(tenant, {wish}, now + kExpectedFor, now)) return false;
  if (!MakeOwnRoom(tenant, wish.bytes)) return false;
  node = index_.Add(entry);
  if (!node->stored()) {
    const absl::Duration age = absl::Now() - absl::FromUnixMillis(entry.added_unix_ms);
    node->added = age < absl::ZeroDuration() ? absl::InfinitePast() : now - age;
    node->shared = now;
    node->expected_until = now + kExpectedFor;
  }
  KeepInMemory(node, std::move(frames), entry.planes);
  // Nothing has used it: of all tenants' it is the oldest.
  order_.splice(order_.end(), order_, node->order);
  return true;
}

bool PrefixStore::MakeOwnRoom(TenantTag tenant, size_t bytes) {
  const size_t quota = tenants_.QuotaOf(tenant).memory_bytes;
  // Below the mark at which the next chunk of anyone's would cost others theirs.
  const size_t limit =
      options_.eviction == Eviction::kLru ? options_.memory_bytes : static_cast<size_t>(marks_.now());
  while (stats_.memory.bytes + bytes > limit || tenants_.MemoryOf(tenant) + bytes > quota) {
    Node* const node = LeastWanted(tenant, MonotonicNow());
    if (node == nullptr) return false;
    ++stats_.memory.evictions;
    DropFromMemory(node);
  }
  return true;
}

PrefixStore::Node* PrefixStore::LeastWanted(TenantTag tenant, absl::Time now) {
  StoreIndex::Order* const order = tenants_.MemoryOrder(tenant);
  for (size_t turns = order == nullptr ? 0 : order->size(); turns > 0; --turns) {
    Node* const node = order->back();
    if (node->expected_until <= now && !pins_.IsPinned(node->key, now)) return node;
    order->splice(order->begin(), *order, std::prev(order->end()));
  }
  return nullptr;
}

PrefixStore::Node* PrefixStore::InItsPlace(Node* node, absl::Time now) {
  if (node->expected_until <= now) return node;
  Node* const other = LeastWanted(TenantOf(node->salt), now);
  return other == nullptr ? node : other;
}

}  // namespace aludel
