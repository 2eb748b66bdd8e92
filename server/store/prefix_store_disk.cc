// The disk's side of the prefix store: what is written when, and what becomes of its failures.

#include <algorithm>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "server/store/prefix_store.h"
#include "spdlog/spdlog.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// Chunks that wait for the disk stay in memory beside the memory tier's.
constexpr size_t kMaxQueuedBytes = 64 << 20;
constexpr size_t kMaxQueuedReads = 1024;
// After a write failed: a disk that is full is not asked again for each chunk.
constexpr absl::Duration kWritePause = absl::Seconds(1);
// So many reads in a row that came too late, and a disk is left alone for a while.
constexpr int kManyLateReads = 4;
constexpr absl::Duration kReadPause = absl::Seconds(10);

uint64_t RecordBytes(const DiskWrite& write) {
  uint64_t bytes =
      ChunkMetaBytes(write.meta.tokens.size(), write.frames == nullptr ? 1 : write.frames->size());
  if (write.frames != nullptr) {
    for (const StoredFrame& frame : *write.frames) bytes += frame.payload.size();
  }
  return RoundUpToBlock(bytes);
}

}  // namespace

void PrefixStore::OpenDisk() {
  DiskTier::Options options{.path = options_.disk->path,
                            .bytes = options_.disk->bytes,
                            .producer = ProducerHash(options_.producer)};
  for (const StoreTag& tag : options_.encoders) options.encoders.emplace(tag.begin(), tag.end());
  absl::MutexLock disk_lock(&disk_mutex_);
  absl::StatusOr<std::unique_ptr<DiskTier>> disk = DiskTier::Open(
      std::move(options), [this](const ChunkEntry& entry, const DiskPlace& place) { Recover(entry, place); });
  if (!disk.ok()) {
    spdlog::error("the prefix store keeps nothing on disk: {}", std::string(disk.status().message()));
    return;
  }
  disk_ = *std::move(disk);
  // The limits may have been higher before.
  if (const absl::StatusOr<bool> room = MakeRoom(0); !room.ok()) {
    spdlog::warn("the prefix store: {}", std::string(room.status().message()));
  }
  absl::MutexLock lock(&mutex_);
  stats_.disk.open = true;
  stats_.disk.bytes = disk_->bytes();
  const uint64_t undated = stats_.findings.undated;  // Recover's
  stats_.findings = disk_->findings();
  stats_.findings.undated = undated;
  spdlog::info("the prefix store has {} chunks in {} bytes at {}", stats_.disk.entries, stats_.disk.bytes,
               options_.disk->path);
  writer_ = std::make_unique<WriteBehind>(kMaxQueuedBytes, [this](const DiskWrite& write) { Write(write); });
  readers_ = std::make_unique<ReadPool>(options_.disk->read_threads, kMaxQueuedReads);
}

void PrefixStore::Recover(const ChunkEntry& entry, const DiskPlace& place) {
  absl::MutexLock lock(&mutex_);
  Node* node = index_.Find(entry.key);
  if (place.segment == nullptr) {
    if (node != nullptr) DropFromDisk(node);
    return;
  }
  node = index_.Add(entry);
  // A wall clock that was set back since makes an age unknown, which is too old for any limit.
  const absl::Duration age = absl::Now() - absl::FromUnixMillis(entry.added_unix_ms);
  const bool undated = age < absl::ZeroDuration();
  node->added = undated ? absl::InfinitePast() : MonotonicNow() - age;
  stats_.findings.undated += undated ? 1 : 0;
  SetOnDisk(node, place);
}

void PrefixStore::SetOnDisk(Node* node, const DiskPlace& place) {
  if (node->disk.segment == nullptr) {
    ++stats_.disk.entries;
  } else {
    tenants_.RemoveDisk(node);
  }
  node->disk = place;
  utility_.Moved(node, MemoryOrder::Now());
  node->wanted = false;
  segments_[place.segment->number()].push_back(node->key);
  tenants_.AddDisk(node);
  index_.Stored(node);
  KeepQuota(TenantOf(node->salt));
}

void PrefixStore::DropFromDisk(Node* node) {
  if (node->disk.segment == nullptr) return;
  --stats_.disk.entries;
  tenants_.RemoveDisk(node);
  node->disk = {};
  utility_.Moved(node, MemoryOrder::Now());
  index_.Drop(node);
}

void PrefixStore::WriteLater(Node* node, absl::Span<const int32_t> prompt) {
  const bool on_disk = node->disk.segment != nullptr &&
                       (node->memory == nullptr || Serves(node->disk.planes, node->memory_planes));
  if (writer_ == nullptr || node->writing || on_disk || node->memory == nullptr || node->over_quota) return;
  if (node->requests < options_.disk->min_requests) {
    ++stats_.seldom;
    return;
  }
  node->writing = writer_->Push(ToWrite(*node, prompt));
  if (!node->writing) ++stats_.queue_full;
}

DiskWrite PrefixStore::ToWrite(const Node& node, absl::Span<const int32_t> prompt) const {
  DiskWrite write{.frames = node.memory, .generation = generation_};
  ChunkEntry& entry = write.meta.entry;
  entry.key = node.key;
  entry.before = node.before;
  entry.encoder = node.encoder;
  entry.salt = node.salt;
  entry.token_begin = node.token_begin;
  entry.tokens = node.tokens;
  entry.stem = node.stem;
  entry.planes = node.memory_planes;
  entry.added_unix_ms = absl::ToUnixMillis(absl::Now() - (MonotonicNow() - node.added));
  const absl::Span<const int32_t> tokens = prompt.subspan(node.token_begin, node.tokens);
  write.meta.tokens.assign(tokens.begin(), tokens.end());
  for (const StoredFrame& frame : *node.memory) {
    write.meta.frames.push_back({frame.coverage, static_cast<uint32_t>(frame.payload.size())});
  }
  return write;
}

bool PrefixStore::IsWanted(const DiskWrite& write) {
  absl::MutexLock lock(&mutex_);
  if (write.generation != generation_) return false;
  if (write.frames == nullptr) return true;
  if (IsBeingCleared(write.meta.entry)) return false;
  const Node* node = index_.Find(write.meta.entry.key);
  if (node != nullptr && node->disk.segment != nullptr &&
      Serves(node->disk.planes, write.meta.entry.planes)) {
    return false;
  }
  if (write.meta.entry.token_begin == 0) return true;
  const Node* before = index_.Find(write.meta.entry.before);
  return before != nullptr && before->stored();
}

void PrefixStore::Write(const DiskWrite& write) {
  absl::MutexLock disk_lock(&disk_mutex_);
  const bool pausing = MonotonicNow() < no_writes_before_;
  const bool wanted = IsWanted(write);
  absl::StatusOr<bool> fits = false;
  if (wanted && !pausing) fits = MakeRoom(RecordBytes(write));
  absl::StatusOr<DiskPlace> place = fits.ok() ? absl::CancelledError("not written") : fits.status();
  if (fits.ok() && *fits) place = Append(write);
  const bool failed = !fits.ok() || (*fits && !place.ok());
  if (failed) {
    no_writes_before_ = MonotonicNow() + kWritePause;
    spdlog::warn("the prefix store: {}", std::string(place.status().message()));
  }
  absl::MutexLock lock(&mutex_);
  stats_.disk.bytes = disk_->bytes();
  stats_.written_bytes = disk_->written_bytes();
  if (wanted && (pausing || failed)) ++stats_.write_errors;
  if (wanted && !pausing && !failed && !place.ok()) ++stats_.no_room;
  if (write.generation != generation_ || write.frames == nullptr) return;
  const ChunkEntry& entry = write.meta.entry;
  Node* node = index_.Find(entry.key);
  if (node != nullptr) node->writing = false;
  if (!place.ok() || IsBeingCleared(entry)) {
    if (place.ok()) segments_[place->segment->number()].push_back(entry.key);  // for ForgetOnDisk
    if (node != nullptr) EndMove(node);
    return;
  }
  // It may have left the memory while it was written.
  const absl::Duration age = absl::Now() - absl::FromUnixMillis(entry.added_unix_ms);
  const bool is_new = node == nullptr || node->tokens == 0;
  node = index_.Add(entry);
  if (is_new) node->added = MonotonicNow() - std::max(age, absl::ZeroDuration());
  SetOnDisk(node, *place);
  EndMove(node);
}

void PrefixStore::EndMove(Node* node) {
  node->moving = nullptr;
  index_.Drop(node);
}

absl::StatusOr<DiskPlace> PrefixStore::Append(const DiskWrite& write) {
  if (write.frames != nullptr) {
    absl::StatusOr<DiskPlace> place = disk_->Append(write.meta, PayloadsOf(*write.frames));
    if (!absl::IsResourceExhausted(place.status()) || !disk_->has_older()) return place;
    // Others have filled the disk: what is oldest here goes for it.
    absl::StatusOr<std::shared_ptr<SegmentFile>> oldest = disk_->DropOldest();
    if (!oldest.ok()) return oldest.status();
    Retire(*std::move(oldest));
    return disk_->Append(write.meta, PayloadsOf(*write.frames));
  }
  const absl::Status status = disk_->AppendTombstones({write.meta.entry.key});
  if (!status.ok()) return status;
  return DiskPlace();
}

bool PrefixStore::HasTooMany() const {
  absl::MutexLock lock(&mutex_);
  return stats_.disk.entries >= options_.disk->max_entries;
}

absl::StatusOr<bool> PrefixStore::MakeRoom(uint64_t record_bytes, size_t entries) {
  if (record_bytes > disk_->max_record_bytes()) return false;
  while (disk_->IsTight(record_bytes, entries) || HasTooMany()) {
    absl::StatusOr<std::shared_ptr<SegmentFile>> oldest = disk_->DropOldest();
    if (!oldest.ok()) return oldest.status();
    Retire(*std::move(oldest));
  }
  return disk_->HasRoom(record_bytes, entries);  // unless leases keep what was dropped
}

void PrefixStore::Retire(std::shared_ptr<SegmentFile> segment) {
  absl::flat_hash_map<ChunkKey, StoredFrames> frames;
  std::vector<ChunkMeta> moving;
  for (const ChunkEntry& entry : Survivors(*segment)) {
    absl::StatusOr<LoadedChunk> chunk = LoadChunk(segment->file(), segment->number(), entry);
    if (!chunk.ok()) continue;
    frames[entry.key] = ToFrames(*chunk);
    moving.push_back(std::move(chunk->meta));
  }
  {
    absl::MutexLock lock(&mutex_);
    if (segment->created() != absl::InfinitePast()) disk_keeps_ = MonotonicNow() - segment->created();
    const std::vector<ChunkKey> held = std::exchange(segments_[segment->number()], {});
    segments_.erase(segment->number());
    for (const ChunkKey& key : held) {
      Node* node = index_.Find(key);
      if (node == nullptr || node->disk.segment != segment) continue;
      if (const auto found = frames.find(key); found != frames.end()) {
        node->moving = found->second;
        node->moving_planes = node->disk.planes;
      } else {
        ++stats_.disk.evictions;
      }
      DropFromDisk(node);
    }
  }
  segment = nullptr;  // its bytes are free now, unless a reader still has it
  for (const ChunkMeta& meta : moving) {
    const ChunkEntry& entry = meta.entry;
    absl::StatusOr<DiskPlace> place = absl::ResourceExhaustedError("no room");
    if (disk_->HasRoom(entry.record_bytes())) place = disk_->Append(meta, PayloadsOf(*frames[entry.key]));
    absl::MutexLock lock(&mutex_);
    Node* node = index_.Find(entry.key);
    if (node == nullptr || node->moving == nullptr) continue;
    if (place.ok()) {
      ++stats_.rewrites;
      SetOnDisk(node, *place);
    } else {
      ++stats_.disk.evictions;
    }
    EndMove(node);
  }
}

std::vector<ChunkEntry> PrefixStore::Survivors(const SegmentFile& segment) {
  std::vector<ChunkEntry> survivors;
  absl::flat_hash_set<ChunkKey> seen;  // one that was written cut and then whole is there twice
  uint64_t bytes = 0;
  absl::MutexLock lock(&mutex_);
  for (const ChunkKey& key : segments_[segment.number()]) {
    const Node* node = index_.Find(key);
    if (node == nullptr || node->disk.segment.get() != &segment || !node->wanted) continue;
    if (!seen.insert(key).second) continue;
    survivors.push_back({.key = key,
                         .block = node->disk.block,
                         .meta_bytes = node->disk.meta_bytes,
                         .payload_bytes = node->disk.payload_bytes});
    bytes += survivors.back().record_bytes();
    if (bytes >= DiskLimits::RewrittenBytes(segment.bytes())) break;
  }
  return survivors;
}

void PrefixStore::Load(const StoredChunk& chunk, absl::Span<const int32_t> prompt,
                       std::function<void(StoredFrames)> done, std::function<bool()> wanted,
                       std::function<void()> on_begun) {
  if (chunk.remote) {
    return LoadRemote(chunk, prompt, std::move(done), std::move(wanted), std::move(on_begun));
  }
  const absl::Span<const int32_t> own =
      prompt.subspan(chunk.token_begin, chunk.end.tokens - chunk.token_begin);
  auto read = [this, chunk, tokens = std::vector<int32_t>(own.begin(), own.end()), done,
               wanted = std::move(wanted)] {
    if (!wanted()) return done(nullptr);
    const absl::Time begun = MonotonicNow();
    const ChunkEntry entry = {.key = chunk.end.key,
                              .block = chunk.disk.block,
                              .meta_bytes = chunk.disk.meta_bytes,
                              .payload_bytes = chunk.disk.payload_bytes};
    absl::StatusOr<LoadedChunk> loaded =
        LoadChunk(chunk.disk.segment->file(), chunk.disk.segment->number(), entry);
    if (loaded.ok() && (loaded->meta.tokens != tokens || loaded->meta.entry.planes != chunk.disk.planes)) {
      loaded = absl::DataLossError("record: of other tokens or planes");
    }
    if (!loaded.ok()) {
      OnLoadFailed(chunk, loaded.status());
      return done(nullptr);
    }
    const StoredFrames frames = ToFrames(*loaded);
    Demoted demoted;
    {
      absl::MutexLock lock(&mutex_);
      ++stats_.loads;
      late_reads_ = 0;
      stats_.load_seconds += absl::ToDoubleSeconds(MonotonicNow() - begun);
      Node* node = chunk.end.generation == lookups_ ? index_.Find(chunk.end.key) : nullptr;
      loaded_bytes_ += static_cast<double>(entry.record_bytes());
      if (node != nullptr && node->stored() && StoredWeight(node->tokens, *frames) <= max_chunk_bytes()) {
        KeepInMemory(node, frames, chunk.disk.planes);
        demoted = Evict(TenantOf(node->salt));
      }
    }
    done(frames);
    MakeCuts(std::move(demoted));
  };
  if (readers_->Post(std::move(read))) return;
  {
    absl::MutexLock lock(&mutex_);
    ++stats_.reads_full;
  }
  done(nullptr);
}

void PrefixStore::CountLateRead() {
  absl::MutexLock lock(&mutex_);
  ++stats_.reads_late;
  if (++late_reads_ < kManyLateReads) return;
  late_reads_ = 0;
  no_reads_before_ = MonotonicNow() + kReadPause;
  spdlog::warn("the prefix store: the disk is too slow, and is not read for {} s",
               absl::ToInt64Seconds(kReadPause));
}

void PrefixStore::OnLoadFailed(const StoredChunk& chunk, const absl::Status& status) {
  spdlog::warn("the prefix store: a chunk could not be read: {}", std::string(status.message()));
  const bool damaged = !absl::IsUnavailable(status);
  absl::MutexLock lock(&mutex_);
  ++(damaged ? stats_.damaged : stats_.read_errors);
  Node* node = chunk.end.generation == lookups_ ? index_.Find(chunk.end.key) : nullptr;
  if (!damaged || node == nullptr || node->disk.segment != chunk.disk.segment) return;
  DropFromDisk(node);
  // Nor is it found after a restart.
  DiskWrite tombstone{.generation = generation_};
  tombstone.meta.entry.key = chunk.end.key;
  if (!writer_->Push(std::move(tombstone))) ++stats_.queue_full;
}

void PrefixStore::Clear(std::function<void(const absl::Status&)> done) {
  // Under the lock it all only changes hands: freeing a million nodes takes long.
  auto nodes = std::make_shared<StoreIndex::All>();
  StoreIndex::Order order;
  TenantShares::Shares tenants;
  absl::flat_hash_map<uint64_t, std::vector<ChunkKey>> segments;
  {
    absl::MutexLock lock(&mutex_);
    ++generation_;
    ++lookups_;
    pins_.Clear();
    agents_.Clear();
    expected_reads_.clear();
    order.swap(order_);
    tenants = tenants_.TakeAll();
    *nodes = index_.TakeAll();
    utility_.Clear();
    segments.swap(segments_);
    stats_.memory.bytes = 0;
    stats_.memory.entries = 0;
    stats_.placement_gap = 0;
    stats_.disk.entries = 0;
    done = AlsoAtRemote({}, {}, std::move(done));
    // Before whatever is stored from now on; and the leases in the nodes, which are the writer's alone from here on, go
    // before the files are counted.
    if (writer_ != nullptr) {
      writer_->Run([this, nodes = std::move(nodes), done]() mutable {
        nodes = nullptr;
        done(ClearDisk());
      });
    }
  }
  if (writer_ == nullptr) done(absl::OkStatus());
}

absl::Status PrefixStore::ClearDisk() {
  absl::MutexLock disk_lock(&disk_mutex_);
  const absl::Status cleared = disk_->Clear();
  if (!cleared.ok()) spdlog::error("the prefix store: {}", std::string(cleared.message()));
  absl::MutexLock lock(&mutex_);
  stats_.disk.bytes = disk_->bytes();
  return cleared;
}

}  // namespace aludel
