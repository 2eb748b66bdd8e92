// The remote's side of the prefix store: what is shared when, and what becomes of its failures.

#include <algorithm>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "server/store/prefix_store.h"
#include "spdlog/spdlog.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// Chunks that wait for the remote stay in memory beside the memory tier's.
constexpr size_t kMaxSharingBytes = 64 << 20;
constexpr size_t kMaxRemoteReads = 1024;
// After the remote took no chunk: one that is full is not asked again for each.
constexpr absl::Duration kSharingPause = absl::Seconds(1);
// So many answers in a row that came too late, and the remote is left alone for a while.
constexpr int kManyLateRemotes = 4;
constexpr absl::Duration kRemotePause = absl::Seconds(10);
// Each look-up is short.
constexpr size_t kFinders = 2;
// Beyond, they are forgotten, and the old chunks stay until they are seen again.
constexpr size_t kMaxOutdated = 4096;
// What the remote takes longer for at the end is not written: it is a cache.
constexpr absl::Duration kClosing = absl::Seconds(5);

}  // namespace

void PrefixStore::OpenRemote() {
  const Remote& remote = *options_.remote;
  remote_ =
      std::make_unique<RemoteTier>(RemoteTier::Options{.address = remote.address,
                                                       .username = remote.username,
                                                       .password = remote.password,
                                                       .ttl = remote.ttl,
                                                       // Found out before the request goes on without it.
                                                       .silence = remote_wait() * 9 / 10,
                                                       .producer = ProducerHash(options_.producer)});
  sharer_ = std::make_unique<WriteBehind>(kMaxSharingBytes, [this](const DiskWrite& write) { Share(write); });
  remote_finders_ = std::make_unique<ReadPool>(kFinders, kMaxRemoteReads);
  remote_readers_ = std::make_unique<ReadPool>(remote.threads, kMaxRemoteReads);
}

void PrefixStore::CloseRemote() {
  if (remote_ == nullptr) return;
  const absl::Time until = MonotonicNow() + kClosing;
  while (sharer_->bytes() > 0 && MonotonicNow() < until) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  remote_->Stop();
  remote_finders_ = nullptr;
  remote_readers_ = nullptr;
  sharer_ = nullptr;
}

absl::Duration PrefixStore::remote_wait() const { return options_.remote->max_wait / 2; }

bool PrefixStore::FindRemote(absl::Span<const int32_t> prompt, absl::Duration max_age,
                             const StorePosition& at, std::function<void(std::vector<StoredChunk>)> done) {
  if (remote_ == nullptr || max_age <= absl::ZeroDuration() || !remote_->usable()) return false;
  const absl::Time now = MonotonicNow();
  {
    absl::MutexLock lock(&mutex_);
    if (now < no_remote_before_ || at.generation != lookups_) return false;
  }
  const absl::Time until = now + remote_wait();
  const absl::Time oldest = absl::Now() - max_age;
  const absl::Span<const int32_t> rest = prompt.subspan(at.tokens);
  auto find = [this, at, until, oldest, tokens = std::vector<int32_t>(rest.begin(), rest.end()), done] {
    std::vector<StoredChunk> chunks;
    if (MonotonicNow() < until && remote_->usable()) {
      const absl::StatusOr<RemoteTier::Run> run = remote_->Find(at.key, at.salt, at.encoder, tokens, until);
      CountFind(run);
      StorePosition end = at;
      for (size_t i = 0; run.ok() && i < run->chunks.size(); ++i) {
        const int64_t begin = end.tokens;
        end.key = run->chunks[i].key;
        end.tokens += run->chunks[i].tokens;
        chunks.push_back({.end = end, .token_begin = begin, .remote = RemotePlace{run->era, oldest}});
      }
    }
    done(std::move(chunks));
  };
  if (remote_finders_->Post(std::move(find))) return true;
  absl::MutexLock lock(&mutex_);
  ++stats_.remote.reads_full;
  return false;
}

void PrefixStore::LoadRemote(const StoredChunk& chunk, absl::Span<const int32_t> prompt,
                             std::function<void(StoredFrames)> done, std::function<bool()> wanted) {
  const absl::Span<const int32_t> own =
      prompt.subspan(chunk.token_begin, chunk.end.tokens - chunk.token_begin);
  auto read = [this, chunk, tokens = std::vector<int32_t>(own.begin(), own.end()), done,
               wanted = std::move(wanted)] {
    // Where another read has found out that the remote hangs, the others do not wait for it.
    done(wanted() && remote_->usable() ? ReadRemote(chunk, tokens) : nullptr);
  };
  if (remote_readers_->Post(std::move(read))) return;
  {
    absl::MutexLock lock(&mutex_);
    ++stats_.remote.reads_full;
  }
  done(nullptr);
}

StoredFrames PrefixStore::ReadRemote(const StoredChunk& chunk, absl::Span<const int32_t> tokens) {
  const absl::Time begun = MonotonicNow();
  absl::StatusOr<LoadedChunk> loaded = remote_->Load(chunk.remote->era, chunk.end.key);
  if (loaded.ok()) {
    const ChunkEntry& entry = loaded->meta.entry;
    const ChunkHasher::Name name = ChunkHasher().NameOf(entry.before, tokens);
    if (absl::MakeConstSpan(loaded->meta.tokens) != tokens || name.key != chunk.end.key ||
        name.stem != entry.stem || entry.token_begin != chunk.token_begin ||
        entry.encoder != chunk.end.encoder || entry.salt != chunk.end.salt) {
      loaded = absl::DataLossError("record: of other tokens, or of another encoder or salt");
    }
  }
  if (!loaded.ok()) {
    OnRemoteLoadFailed(chunk, loaded.status());
    return nullptr;
  }
  const ChunkEntry& entry = loaded->meta.entry;
  const absl::Time added = absl::FromUnixMillis(entry.added_unix_ms);
  // By the clock of the machine that encoded it. One in the future makes an age unknown, as in Recover.
  const absl::Duration age = absl::Now() - added;
  const bool is_known = age >= absl::ZeroDuration();
  const bool is_old =
      chunk.remote->oldest != absl::InfinitePast() && (!is_known || added < chunk.remote->oldest);
  StoredFrames frames = ToFrames(*loaded);
  absl::MutexLock lock(&mutex_);
  ++stats_.remote.loads;
  stats_.remote.load_seconds += absl::ToDoubleSeconds(MonotonicNow() - begun);
  late_remotes_[static_cast<size_t>(RemoteWork::kLoad)] = 0;
  if (is_old) {
    if (outdated_.size() >= kMaxOutdated) outdated_.clear();
    outdated_.insert(entry.key);
    return nullptr;
  }
  if (chunk.end.generation != lookups_ || StoredWeight(entry.tokens, *frames) > max_chunk_bytes()) {
    return frames;
  }
  Node* node = index_.Add(entry);
  if (!node->stored()) node->added = is_known ? MonotonicNow() - age : absl::InfinitePast();
  node->shared = MonotonicNow();
  ++node->requests;
  if (node->memory == nullptr) {
    KeepInMemory(node, frames);
    Evict(TenantOf(entry.salt));
  }
  return frames;
}

void PrefixStore::OnRemoteLoadFailed(const StoredChunk& chunk, const absl::Status& status) {
  CountRemoteError(status);
  if (!absl::IsDataLoss(status) && !absl::IsNotFound(status)) return;
  {
    // What is computed in its place is written there.
    absl::MutexLock lock(&mutex_);
    if (Node* node = index_.Find(chunk.end.key); node != nullptr) node->shared = absl::InfinitePast();
  }
  if (!absl::IsDataLoss(status)) return;
  // Or each server would read it in vain, and each write have it live on.
  const absl::Status dropped = remote_->Drop(chunk.remote->era, chunk.end.key);
  if (!dropped.ok()) CountRemoteError(dropped);
}

void PrefixStore::CountFind(const absl::StatusOr<RemoteTier::Run>& run) {
  if (!run.ok()) return CountRemoteError(run.status());
  absl::MutexLock lock(&mutex_);
  if (run->in_part) {
    ++stats_.remote.late;
  } else {
    late_remotes_[static_cast<size_t>(RemoteWork::kFind)] = 0;
  }
}

void PrefixStore::CountLateRemote(RemoteWork work) {
  absl::MutexLock lock(&mutex_);
  ++stats_.remote.late;
  int& late = late_remotes_[static_cast<size_t>(work)];
  if (++late < kManyLateRemotes) return;
  late = 0;
  no_remote_before_ = MonotonicNow() + kRemotePause;
  spdlog::warn("the prefix store: the remote is too slow, and is not read for {} s",
               absl::ToInt64Seconds(kRemotePause));
}

void PrefixStore::CountRemoteError(const absl::Status& status) {
  if (absl::IsDataLoss(status)) {
    spdlog::warn("the prefix store: a chunk of the remote is of no use: {}", std::string(status.message()));
  }
  absl::MutexLock lock(&mutex_);
  ++(absl::IsDataLoss(status)            ? stats_.remote.damaged
     : absl::IsNotFound(status)          ? stats_.remote.gone
     : absl::IsResourceExhausted(status) ? stats_.remote.refused
                                         : stats_.remote.errors);
}

void PrefixStore::ShareLater(Node* node, absl::Span<const int32_t> prompt, bool replace) {
  if (remote_ == nullptr || node->memory == nullptr || node->memory_bytes > RemoteTier::kMaxRecordBytes)
    return;
  const absl::Time now = MonotonicNow();
  if (now < no_sharing_before_ || !remote_->usable()) return;
  if (!replace && node->shared > std::max(now - options_.remote->ttl / 2, remote_->up_since())) return;
  DiskWrite write = ToWrite(*node, prompt);
  write.replace = replace;
  write.generation = lookups_;  // what waits while any chunks are cleared may be of them
  if (sharer_->Push(std::move(write))) {
    node->shared = now;
  } else {
    ++stats_.remote.queue_full;
  }
}

void PrefixStore::Share(const DiskWrite& write) {
  bool wanted = false;
  {
    absl::MutexLock lock(&mutex_);
    wanted = write.generation == lookups_ && MonotonicNow() >= no_sharing_before_;
  }
  absl::StatusOr<size_t> written = absl::CancelledError("not wanted any more");
  if (wanted) written = remote_->Write(write.meta, PayloadsOf(*write.frames), write.replace);
  if (wanted && !written.ok()) CountRemoteError(written.status());
  absl::MutexLock lock(&mutex_);
  if (written.ok()) {
    stats_.remote.written_bytes += *written;
    return;
  }
  if (absl::IsResourceExhausted(written.status())) {
    no_sharing_before_ = MonotonicNow() + kSharingPause;
    spdlog::warn("the prefix store: the remote takes no chunk: {}", std::string(written.status().message()));
  }
  Node* node = index_.Find(write.meta.entry.key);
  if (node != nullptr) node->shared = absl::InfinitePast();
}

PrefixStore::Cleared PrefixStore::AlsoAtRemote(const StoreFilter& filter,
                                               const absl::flat_hash_set<ChunkKey>& keys, Cleared done) {
  if (remote_ == nullptr) return done;
  if (!filter.from) {
    remote_->BeginEra(filter);
  } else if (const Node* node = index_.Find(*filter.from); node != nullptr) {
    remote_->BeginForget(node->salt, node->encoder, {keys.begin(), keys.end()});
  }
  return [this, done](absl::Status cleared) {
    sharer_->Run([this, done, cleared]() mutable {
      const absl::Status status = remote_->Flush();
      if (!status.ok()) {
        spdlog::error("the prefix store: what is cleared may be found again at the remote: {}",
                      std::string(status.message()));
      }
      cleared.Update(status);
      done(cleared);
    });
  };
}

}  // namespace aludel
