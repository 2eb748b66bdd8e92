#include "server/store/prefix_store.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <utility>

#include "server/store/cut_frames.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// Where nothing was computed or read yet.
constexpr double kUsualPrefillRate = 1e4;  // tokens a second
constexpr double kUsualDiskRate = 1e9;     // bytes a second
constexpr double kUsualRemoteRate = 1e8;

}  // namespace

PrefixStore::PrefixStore(Options options)
    : options_(std::move(options)),
      tenants_(options_.quota),
      utility_(options_.cuts),
      marks_(options_.memory_bytes),
      pins_(std::min(options_.pinned_bytes, options_.memory_bytes / 2)),
      agents_(options_.memory_bytes / 4) {
  {
    absl::MutexLock lock(&mutex_);
    index_.Watch(options_.watcher);
  }
  if (enabled() && options_.disk.has_value()) OpenDisk();
  if (enabled() && options_.remote.has_value()) OpenRemote();
}

PrefixStore::~PrefixStore() {
  {
    absl::MutexLock lock(&mutex_);
    expected_reads_.clear();
  }
  readers_ = nullptr;
  writer_ = nullptr;
  CloseRemote();
}

StorePosition PrefixStore::Begin(const CodecSpec& codec, absl::string_view salt) const {
  StorePosition position{.key = RootKey(options_.producer, codec, salt),
                         .planes = CutPlanes(codec),
                         .encoder = EncoderTag(codec),
                         .salt = SaltTag(salt)};
  absl::MutexLock lock(&mutex_);
  position.generation = lookups_;
  return position;
}

std::vector<StoredChunk> PrefixStore::Find(absl::Span<const int32_t> prompt, absl::Duration max_age,
                                           StorePosition* at) {
  std::vector<StoredChunk> chunks;
  const absl::Time asked = MonotonicNow();
  const absl::Time since = asked - max_age;
  ChunkHasher hasher;
  while (at->tokens < static_cast<int64_t>(prompt.size())) {
    const std::vector<ChunkKey> candidates = Candidates(at->key, prompt.subspan(at->tokens), hasher);
    if (!Take(candidates, prompt, since, MemoryOrder::Seconds(asked), at, &chunks)) break;
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

PrefixStore::Node* PrefixStore::Longest(absl::Span<const ChunkKey> candidates, absl::Time since,
                                        uint8_t planes) {
  for (auto key = candidates.rbegin(); key != candidates.rend(); ++key) {
    Node* node = index_.Find(*key);
    if (node != nullptr && node->serves(planes) && node->added >= since) return node;
  }
  return nullptr;
}

bool PrefixStore::Take(absl::Span<const ChunkKey> candidates, absl::Span<const int32_t> prompt,
                       absl::Time since, double now, StorePosition* at, std::vector<StoredChunk>* chunks) {
  absl::MutexLock lock(&mutex_);
  if (at->generation != lookups_) return false;
  Node* node = Longest(candidates, since, at->planes);
  if (node == nullptr) return false;
  StoredFrames frames = FramesOf(*node, at->planes);
  if (frames == nullptr && MonotonicNow() < no_reads_before_) return false;
  const int64_t begin = at->tokens;
  at->key = node->key;
  at->tokens += node->tokens;
  ++node->requests;
  CountUse(node, at->planes, now);
  node->wanted = true;
  WriteLater(node, prompt);
  ShareLater(node, prompt);
  chunks->push_back({*at, begin, std::move(frames), node->disk});
  return true;
}

int64_t PrefixStore::Findable(absl::Span<const int32_t> prompt, StorePosition at) {
  ChunkHasher hasher;
  while (at.tokens < static_cast<int64_t>(prompt.size())) {
    const std::vector<ChunkKey> candidates = Candidates(at.key, prompt.subspan(at.tokens), hasher);
    absl::MutexLock lock(&mutex_);
    if (at.generation != lookups_) break;
    const Node* const node = Longest(candidates, absl::InfinitePast(), at.planes);
    if (node == nullptr) break;
    if (FramesOf(*node, at.planes) == nullptr && MonotonicNow() < no_reads_before_) break;
    at.key = node->key;
    at.tokens += node->tokens;
  }
  return at.tokens;
}

bool PrefixStore::Put(absl::Span<const int32_t> prompt, int64_t end, std::vector<StoredFrame> frames,
                      StorePosition* at) {
  const absl::Span<const int32_t> tokens = prompt.subspan(at->tokens, end - at->tokens);
  if (StoredWeight(static_cast<int64_t>(tokens.size()), frames) > max_chunk_bytes()) {
    absl::MutexLock lock(&mutex_);
    if (enabled()) ++stats_.rejects.too_large;
    return false;
  }
  const ChunkHasher::Name name = ChunkHasher().NameOf(at->key, tokens);
  auto kept = std::make_shared<const std::vector<StoredFrame>>(std::move(frames));

  Demoted demoted;
  {
    absl::MutexLock lock(&mutex_);
    if (at->generation != lookups_) {
      ++stats_.rejects.cleared;
      return false;
    }
    // Behind a chunk that is gone nothing would be found; behind one that was cut, by those who ask for fewer planes.
    const Node* const before = index_.Find(at->key);
    if (at->tokens > 0 && (before == nullptr || !before->stored())) {
      ++stats_.rejects.front_gone;
      return false;
    }
    Node* node = index_.Add({.key = name.key,
                             .before = at->key,
                             .encoder = at->encoder,
                             .salt = at->salt,
                             .token_begin = static_cast<uint32_t>(at->tokens),
                             .tokens = static_cast<uint32_t>(tokens.size()),
                             .stem = name.stem});
    const absl::Time now = MonotonicNow();
    node->added = now;
    ++node->requests;
    CountUse(node, at->planes, MemoryOrder::Seconds(now));
    if (!KeepInMemory(node, std::move(kept), at->planes)) {
      ++stats_.rejects.pinned;
      return false;
    }
    at->key = name.key;
    at->tokens = end;
    WriteLater(node, prompt);
    ShareLater(node, prompt, ReplacesShared(*node));
    demoted = Evict(TenantOf(at->salt));
  }
  MakeCuts(std::move(demoted));
  return true;
}

size_t PrefixStore::max_chunk_bytes() const {
  if (options_.eviction == Eviction::kLru) return options_.memory_bytes;
  return static_cast<size_t>(MemoryMarks::kLow * static_cast<double>(options_.memory_bytes));
}

StoredFrames PrefixStore::FramesOf(const Node& node, uint8_t planes) {
  if (node.memory_serves(planes)) return node.memory;
  return node.moving_serves(planes) ? node.moving : nullptr;
}

void PrefixStore::CountUse(Node* node, uint8_t planes, double now) {
  if (options_.eviction == Eviction::kUtility) utility_.Used(node, planes, now);
}

void PrefixStore::ReplaceInMemory(Node* node, StoredFrames frames, uint8_t planes) {
  const size_t bytes = StoredWeight(node->tokens, *frames);
  stats_.memory.bytes += bytes - node->memory_bytes;
  tenants_.ResizeMemory(node, bytes);
  node->memory = std::move(frames);
  node->memory_planes = planes;
  index_.Stored(node);
  utility_.Moved(node, MemoryOrder::Now());
}

bool PrefixStore::KeepInMemory(Node* node, StoredFrames frames, uint8_t planes) {
  if (node->memory_serves(planes)) return true;
  const size_t bytes = StoredWeight(node->tokens, *frames);
  const bool fits = pins_.Resize(node->key, bytes, MonotonicNow());
  if (node->memory != nullptr) {
    if (fits) ReplaceInMemory(node, std::move(frames), planes);
    return fits;
  }
  if (!fits) pins_.Unpin(node->key);
  node->memory_bytes = bytes;
  node->memory = std::move(frames);
  node->memory_planes = planes;
  // As young as the chunk in front of it, and gone before that one is.
  const Node* before = index_.Find(node->before);
  const bool follows = before != nullptr && before->memory != nullptr;
  // What uses it uses the one in front, which took part in this use a little earlier.
  if (follows && before->uses.Log2AtEpoch() < node->uses.Log2AtEpoch()) node->uses = before->uses;
  node->order = order_.insert(follows ? std::next(before->order) : order_.begin(), node);
  tenants_.AddMemory(node, follows ? before : nullptr);
  index_.Stored(node);
  stats_.memory.bytes += node->memory_bytes;
  ++stats_.memory.entries;
  if (options_.eviction == Eviction::kUtility) utility_.Add(node, MemoryOrder::Now());
  return true;
}

void PrefixStore::DropFromMemory(Node* node) {
  stats_.memory.bytes -= node->memory_bytes;
  --stats_.memory.entries;
  utility_.Remove(node, MemoryOrder::Now());
  tenants_.RemoveMemory(node);
  order_.erase(node->order);
  // The queue has it until it is written: what follows it can be stored, and is found.
  if (node->writing) {
    node->moving = node->memory;
    node->moving_planes = node->memory_planes;
  }
  node->memory = nullptr;
  node->over_quota = false;
  index_.Drop(node);
}

PrefixStore::Node* PrefixStore::LeastUsed(StoreIndex::Order& order) {
  const absl::Time now = MonotonicNow();
  for (size_t turns = order.size(); turns > 0; --turns) {
    if (!pins_.IsPinned(order.back()->key, now)) return InItsPlace(order.back(), now);
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

PrefixStore::Demoted PrefixStore::Evict(TenantTag tenant) {
  Demoted demoted;
  KeepQuota(tenant);
  if (options_.eviction == Eviction::kUtility) {
    DemoteByUtility(&demoted);
    return demoted;
  }
  while (stats_.memory.bytes > options_.memory_bytes) {
    Node* node = LeastUsed(order_);
    if (node == nullptr) break;
    ++stats_.memory.evictions;
    demoted.dropped.push_back(node->memory);
    DropFromMemory(node);
  }
  return demoted;
}

MemoryMarks::Use PrefixStore::MemoryUse() const {
  return {stats_.memory.bytes,
          static_cast<double>(stats_.memory.bytes) - static_cast<double>(cutting_bytes_)};
}

void PrefixStore::DemoteByUtility(Demoted* demoted) {
  const auto full = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return marks_.IsFull(MemoryUse()); };
  const auto drop = [&](Node* node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ++stats_.memory.evictions;
    demoted->dropped.push_back(node->memory);
    DropFromMemory(node);
  };
  if (!marks_.Begin(MemoryUse())) return;
  const absl::Time time = MonotonicNow();
  const double now = MemoryOrder::Seconds(time);
  const double rate = options_.prefill_tokens_per_second();
  utility_.Begin({.prefill_seconds = 1 / (rate > 0 ? rate : kUsualPrefillRate),
                  .disk_bytes_per_second =
                      stats_.load_seconds > 0 ? loaded_bytes_ / stats_.load_seconds : kUsualDiskRate,
                  .disk_seconds = absl::ToDoubleSeconds(disk_keeps_)},
                 now);
  size_t cut_here = 0;
  for (int moves = 0; marks_.GoesOn(MemoryUse(), moves); ++moves) {
    const MemoryOrder::Move move = utility_.Next(now);
    if (move.node == nullptr) break;
    // Once for each pin, and not in each row.
    if (const absl::Time until = pins_.Until(move.node->key); until > time) {
      utility_.PassOver(move.node, MemoryOrder::Seconds(until), now);
      continue;
    }
    // The other is neither pinned nor expected, and goes whole even where it is about to be cut.
    if (Node* const other = InItsPlace(move.node, time); other != move.node) {
      utility_.PassOver(move.node, now, now);
      drop(other);
      continue;
    }
    size_t payload = 0;
    for (const StoredFrame& frame : *move.node->memory) payload += frame.payload.size();
    const size_t left = move.planes == 0 ? 0 : CutBytes(*move.node->memory, move.planes);
    if (left == 0 || (full() && cut_here + left > MemoryMarks::kCutsInRow)) {
      drop(move.node);
      continue;
    }
    if (full()) {
      cut_here += left;
      ++stats_.cuts;
      demoted->dropped.push_back(move.node->memory);
      ReplaceInMemory(move.node, CutFrames(move.node->memory, move.planes), move.planes);
      continue;
    }
    demoted->cuts.push_back({move.node->key, move.node->memory, move.planes, payload - left});
    cutting_bytes_ += payload - left;
    utility_.PassOver(move.node, std::numeric_limits<double>::infinity(), now);
  }
  // What the row has freed below the mark is the relaxation's.
  const double gap = utility_.End(marks_.low() - MemoryUse().kept, now);
  if (marks_.End(MemoryUse())) stats_.placement_gap = gap;
}

void PrefixStore::MakeCuts(Demoted demoted) {
  if (demoted.cuts.empty()) return;
  std::vector<StoredFrames> cut;
  cut.reserve(demoted.cuts.size());
  for (const Demoted::Cut& one : demoted.cuts) cut.push_back(CutFrames(one.of, one.planes));
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < cut.size(); ++i) {
    const Demoted::Cut& one = demoted.cuts[i];
    cutting_bytes_ -= one.freed;
    Node* const node = index_.Find(one.key);
    if (node == nullptr || node->memory != one.of) continue;  // gone, or made again, meanwhile
    if (pins_.IsPinned(one.key, MonotonicNow())) {
      utility_.Moved(node, MemoryOrder::Now());
      continue;
    }
    ++stats_.cuts;
    ReplaceInMemory(node, std::move(cut[i]), one.planes);
  }
}

void PrefixStore::CountLookup(const Found& found, int64_t prompt_tokens) {
  const int64_t tokens = found.tokens();
  absl::MutexLock lock(&mutex_);
  stats_.memory.hits += found.memory_tokens > 0 ? 1 : 0;
  stats_.disk.hits += found.disk_tokens > 0 ? 1 : 0;
  stats_.remote.hits += found.remote_tokens > 0 ? 1 : 0;
  stats_.memory.hit_tokens += static_cast<uint64_t>(found.memory_tokens);
  stats_.disk.hit_tokens += static_cast<uint64_t>(found.disk_tokens);
  stats_.remote.hit_tokens += static_cast<uint64_t>(found.remote_tokens);
  ++(tokens == prompt_tokens ? stats_.hits : tokens > 0 ? stats_.partial_hits : stats_.misses);
  if (tokens > 0 && found.tokens_per_second > 0) CountSaved(found);
}

void PrefixStore::CountSaved(const Found& found) {
  const double computing = static_cast<double>(found.tokens()) / found.tokens_per_second;
  const auto reading = [](uint64_t bytes, double seconds, double of_bytes, double usual_rate) {
    const double rate = seconds > 0 && of_bytes > 0 ? of_bytes / seconds : usual_rate;
    return static_cast<double>(bytes) / rate;
  };
  const double read =
      reading(found.disk_bytes, stats_.load_seconds, loaded_bytes_, kUsualDiskRate) +
      reading(found.remote_bytes, stats_.remote.load_seconds, fetched_bytes_, kUsualRemoteRate);
  stats_.saved.expected += std::max(0.0, computing - read);
  const double measured = computing - absl::ToDoubleSeconds(found.waited);
  (measured >= 0 ? stats_.saved.measured : stats_.saved.lost) += std::abs(measured);
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
