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
// An operator's look-up waits for what a request would not.
constexpr absl::Duration kOperatorWait = absl::Seconds(5);
// Each look-up is short.
constexpr size_t kFinders = 2;
// Beyond, they are forgotten, and the old chunks stay until they are seen again.
constexpr size_t kMaxOutdated = 4096;
// What the remote takes longer for at the end is not written: it is a cache.
constexpr absl::Duration kClosing = absl::Seconds(2);

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
  sharer_ = std::make_unique<WriteBehind>(
      kMaxSharingBytes, [this](const DiskWrite& write) { Share(write); }, /*shared=*/true);
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
                             const StorePosition& at, std::function<void(std::vector<StoredChunk>)> done,
                             absl::Duration patience) {
  if (remote_ == nullptr || max_age <= absl::ZeroDuration() || !remote_->usable()) return false;
  const absl::Time now = MonotonicNow();
  {
    absl::MutexLock lock(&mutex_);
    if (now < no_remote_before_ || at.generation != lookups_) return false;
  }
  return PostFind(prompt.subspan(at.tokens), at, now + std::min(patience, remote_wait()),
                  absl::Now() - max_age,
                  [done](std::vector<StoredChunk> chunks, const absl::Status&) { done(std::move(chunks)); });
}

bool PrefixStore::PostFind(absl::Span<const int32_t> rest, const StorePosition& at, absl::Time until,
                           absl::Time oldest, RemoteFound done) {
  auto find = [this, at, until, oldest, tokens = std::vector<int32_t>(rest.begin(), rest.end()), done] {
    std::vector<StoredChunk> chunks;
    absl::Status whole = absl::UnavailableError("the remote tells nothing");
    if (MonotonicNow() < until && remote_->usable()) {
      const absl::StatusOr<RemoteTier::Run> run = remote_->Find(at.key, at.salt, at.encoder, tokens, until);
      CountFind(run, until);
      whole = run.status();
      if (run.ok() && run->in_part) whole = absl::UnavailableError("the remote tells a part");
      StorePosition end = at;
      for (size_t i = 0; run.ok() && i < run->chunks.size(); ++i) {
        const int64_t begin = end.tokens;
        end.key = run->chunks[i].key;
        end.tokens += run->chunks[i].tokens;
        chunks.push_back({.end = end, .token_begin = begin, .remote = RemotePlace{run->era, oldest}});
      }
    }
    done(std::move(chunks), whole);
  };
  if (remote_finders_->Post(std::move(find))) return true;
  absl::MutexLock lock(&mutex_);
  ++stats_.remote.reads_full;
  return false;
}

void PrefixStore::PeekEverywhere(absl::Span<const int32_t> prompt, StorePosition at,
                                 std::function<void(std::vector<StoredChunk>)> done) {
  std::vector<StoredChunk> here = Peek(prompt, &at);
  if (at.tokens < static_cast<int64_t>(prompt.size())) {
    const auto add = [here, done](std::vector<StoredChunk> there) {
      there.insert(there.begin(), here.begin(), here.end());
      done(std::move(there));
    };
    if (FindRemote(prompt, absl::InfiniteDuration(), at, add)) return;
  }
  done(std::move(here));
}

void PrefixStore::PeekAll(absl::Span<const int32_t> prompt, StorePosition at,
                          std::function<void(absl::StatusOr<std::vector<StoredChunk>>)> done) {
  std::vector<StoredChunk> here = Peek(prompt, &at);
  if (remote_ == nullptr || at.tokens >= static_cast<int64_t>(prompt.size())) return done(std::move(here));
  const auto add = [here, done](std::vector<StoredChunk> there, const absl::Status& whole) {
    if (!whole.ok()) return done(absl::UnavailableError(whole.message()));
    there.insert(there.begin(), here.begin(), here.end());
    done(std::move(there));
  };
  const absl::Time until = MonotonicNow() + kOperatorWait;
  if (PostFind(prompt.subspan(at.tokens), at, until, absl::InfinitePast(), add)) return;
  done(absl::UnavailableError("too many look-ups wait for the remote"));
}

void PrefixStore::RenewLater(const std::vector<const Node*>& nodes) {
  if (remote_ == nullptr || !remote_->usable()) return;
  auto entries = std::make_shared<std::vector<ChunkEntry>>();
  for (const Node* node : nodes) {
    ChunkEntry& entry = entries->emplace_back();
    entry.key = node->key;
    entry.before = node->before;
    entry.tokens = node->tokens;
    entry.stem = node->stem;
    entry.encoder = node->encoder;
    entry.salt = node->salt;
  }
  sharer_->Run([this, entries] {
    for (const ChunkEntry& entry : *entries) {
      const absl::Status renewed = remote_->Renew(entry);
      if (!renewed.ok()) return CountRemoteError(renewed);
    }
  });
}

bool PrefixStore::IsAtRemote(const Node& node, absl::Time now) const {
  return remote_ != nullptr && node.shared > std::max(now - options_.remote->ttl, remote_->up_since());
}

void PrefixStore::LoadRemote(const StoredChunk& chunk, absl::Span<const int32_t> prompt,
                             std::function<void(StoredFrames)> done, std::function<bool()> wanted,
                             std::function<void()> on_begun) {
  const absl::Span<const int32_t> own =
      prompt.subspan(chunk.token_begin, chunk.end.tokens - chunk.token_begin);
  auto read = [this, chunk, tokens = std::vector<int32_t>(own.begin(), own.end()), done,
               wanted = std::move(wanted), on_begun = std::move(on_begun)] {
    // Where another read has found out that the remote hangs, the others do not wait for it.
    done(wanted() && remote_->usable() ? ReadRemote(chunk, tokens, on_begun) : nullptr);
  };
  if (remote_readers_->Post(std::move(read))) return;
  {
    absl::MutexLock lock(&mutex_);
    ++stats_.remote.reads_full;
  }
  done(nullptr);
}

StoredFrames PrefixStore::ReadRemote(const StoredChunk& chunk, absl::Span<const int32_t> tokens,
                                     const std::function<void()>& on_begun) {
  const absl::Time begun = MonotonicNow();
  absl::StatusOr<LoadedChunk> loaded = remote_->Load(chunk.remote->era, chunk.end.key, on_begun);
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
  const bool is_cut = !Serves(entry.planes, chunk.end.planes);
  StoredFrames frames = ToFrames(*loaded);
  Demoted demoted;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = MonotonicNow();
    ++stats_.remote.loads;
    fetched_bytes_ += static_cast<double>(entry.record_bytes());
    stats_.remote.load_seconds += absl::ToDoubleSeconds(now - begun);
    late_remotes_[static_cast<size_t>(RemoteWork::kLoad)] = 0;
    if (is_old || is_cut) {
      if (outdated_.size() >= kMaxOutdated) outdated_.clear();
      outdated_[entry.key] = entry.planes;
      return nullptr;
    }
    if (chunk.end.generation != lookups_ || StoredWeight(entry.tokens, *frames) > max_chunk_bytes()) {
      return frames;
    }
    Node* node = index_.Add(entry);
    const absl::Time encoded = is_known ? now - age : absl::InfinitePast();
    if (!node->stored()) {
      node->added = encoded;
    } else if (!node->memory_serves(entry.planes)) {
      node->added = std::min(node->added, encoded);  // it takes the place of a cut one
    }
    node->shared = now;
    ++node->requests;
    CountUse(node, chunk.end.planes, MemoryOrder::Seconds(now));
    KeepInMemory(node, frames, entry.planes);
    demoted = Evict(TenantOf(entry.salt));
  }
  MakeCuts(std::move(demoted));
  return frames;
}

void PrefixStore::OnRemoteLoadFailed(const StoredChunk& chunk, const absl::Status& status) {
  if (absl::IsDeadlineExceeded(status)) return CountLateRemote(RemoteWork::kLoad);
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

void PrefixStore::CountFind(const absl::StatusOr<RemoteTier::Run>& run, absl::Time until) {
  if (absl::IsDeadlineExceeded(run.status())) {
    // From then on it is not waited for, which is counted where that is done.
    if (MonotonicNow() < until) CountLateRemote(RemoteWork::kFind);
    return;
  }
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

bool PrefixStore::ReplacesShared(const Node& node) {
  const auto shared = outdated_.find(node.key);
  if (shared == outdated_.end() || !Serves(node.memory_planes, shared->second)) return false;
  outdated_.erase(shared);
  return true;
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
  } else if (filter.salt && filter.encoder) {
    remote_->BeginForget(*filter.salt, *filter.encoder, {keys.begin(), keys.end()});
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
