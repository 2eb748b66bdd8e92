#include "server/rpc/cache_events/cache_feeds.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "spdlog/spdlog.h"
#include "transport/monotonic_clock.h"

namespace aludel {

// One stream. Owned by the feeds, and until gRPC is done with it by itself.
class CacheFeeds::Feed : public grpc::ClientReadReactor<v1::CacheEvent> {
 public:
  struct End {
    bool unknown = false;  // the server does not know the call, or has more than can be known
    absl::Duration lived;
    size_t dropped_keys = 0;  // it had so many when it was one too many; 0: it was not
  };

  Feed(std::shared_ptr<CacheSource> source, CacheFeeds* feeds)
      : name_(source->cache_name()),
        source_(std::move(source)),
        feeds_(feeds),
        mirror_(feeds->limits_.server_keys) {}

  void Start(std::shared_ptr<Feed> self) {
    self_ = std::move(self);
    {
      absl::MutexLock lock(&feeds_->mutex_);
      ++feeds_->open_;
    }
    source_->cache_stub()->async()->Watch(&context_, &request_, this);
    StartRead(&event_);
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }
  // What it tells is too much beside the others.
  void Drop() {
    dropped_ = true;
    Cancel();
  }
  bool dropped() const { return dropped_; }
  const std::string& name() const { return name_; }
  // That it holds, or has said.
  size_t keys() const { return keys_; }
  // Nothing while it runs.
  std::optional<End> end() {
    absl::MutexLock lock(&mutex_);
    return end_;
  }

 private:
  bool Hear() {
    const CacheMirror::Heard heard = mirror_.Hear(event_);
    switch (heard) {
      case CacheMirror::Heard::kNothing:
        break;
      case CacheMirror::Heard::kSnapshot:
      case CacheMirror::Heard::kChanges: {
        if (!source_->cache_is_of(mirror_.epoch())) return false;
        const bool whole = heard == CacheMirror::Heard::kSnapshot;
        if (whole && MonotonicNow() - snapshot_ < kLeastBetweenSnapshots) return false;
        if (whole) snapshot_ = MonotonicNow();
        const std::optional<size_t> known =
            whole ? source_->CacheKnown(mirror_) : source_->CacheChanged(mirror_);
        mirror_.Drop();
        said_.unknown = !known;
        if (!known) return false;
        known_ = *known;
        break;
      }
      case CacheMirror::Heard::kTooMany:
        said_.unknown = true;
        return false;
      case CacheMirror::Heard::kBroken:
        spdlog::warn("{}: what it says of its cache does not hold together; it is asked again",
                     source_->cache_name());
        return false;
    }
    keys_ = known_ + mirror_.held();
    return true;
  }

  // gRPC's calls, one after the other.
  void OnReadDone(bool ok) override {
    if (!ok) return;
    if (Hear()) return StartRead(&event_);
    source_->CacheUnknown();
    Cancel();
  }
  void OnDone(const grpc::Status& status) override {
    const std::shared_ptr<Feed> self = std::move(self_);  // may be the last owner
    source_->CacheUnknown();
    source_ = nullptr;  // it may be the last owner of that, too, and what it uses is the feeds' owner's
    said_.unknown |= status.error_code() == grpc::StatusCode::UNIMPLEMENTED || dropped_;
    said_.lived = MonotonicNow() - begin_;
    if (dropped_) said_.dropped_keys = keys_;
    {
      absl::MutexLock lock(&mutex_);
      end_ = said_;
    }
    feeds_->Ended();
  }

  const std::string name_;
  std::shared_ptr<CacheSource> source_;
  CacheFeeds* const feeds_;
  std::shared_ptr<Feed> self_;
  grpc::ClientContext context_;
  v1::WatchCacheRequest request_;
  v1::CacheEvent event_;
  const absl::Time begin_ = MonotonicNow();
  CacheMirror mirror_;
  absl::Time snapshot_ = absl::InfinitePast();
  size_t known_ = 0;
  std::atomic<size_t> keys_ = 0;
  std::atomic<bool> dropped_ = false;
  End said_;
  absl::Mutex mutex_;
  std::optional<End> end_ ABSL_GUARDED_BY(mutex_);
};

CacheFeeds::~CacheFeeds() {
  for (const auto& [key, fed] : fed_) {
    if (fed.feed != nullptr) fed.feed->Cancel();
  }
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](int* open) { return *open == 0; }, &open_));
}

// The feed touches nothing of these afterwards.
void CacheFeeds::Ended() {
  absl::MutexLock lock(&mutex_);
  --open_;
}

void CacheFeeds::Tend(const std::vector<std::shared_ptr<CacheSource>>& sources) {
  std::map<const CacheSource*, Fed> before;
  std::swap(before, fed_);
  for (const auto& source : sources) {
    const auto known = before.find(source.get());
    Fed fed = known == before.end() ? Fed{.source = source} : std::move(known->second);
    if (known != before.end()) before.erase(known);
    fed_.emplace(source.get(), std::move(fed));
  }
  for (auto& [key, fed] : fed_) Tend(&fed);
  Bound();
  for (const auto& [key, fed] : before) {
    if (fed.feed != nullptr) fed.feed->Cancel();
  }
}

size_t CacheFeeds::Keys() const {
  size_t keys = 0;
  for (const auto& [key, fed] : fed_) {
    if (fed.feed != nullptr && !fed.feed->dropped()) keys += fed.feed->keys();
  }
  return keys;
}

void CacheFeeds::Bound() {
  while (Keys() > limits_.all_keys) {
    Feed* most = nullptr;
    for (const auto& [key, fed] : fed_) {
      if (fed.feed == nullptr || fed.feed->dropped()) continue;
      if (most == nullptr || fed.feed->keys() > most->keys()) most = fed.feed.get();
    }
    spdlog::warn("{}: tells most of servers that tell more of their caches than can be known", most->name());
    most->Drop();
  }
}

void CacheFeeds::Tend(Fed* fed) {
  const absl::Time now = MonotonicNow();
  if (fed->feed != nullptr) {
    const std::optional<Feed::End> end = fed->feed->end();
    if (!end) return;
    if (end->lived >= kLongLife) fed->retry = kFirstRetry;
    fed->keys = end->dropped_keys;
    fed->next = now + (end->unknown ? kUnknownRetry : fed->retry);
    fed->retry = std::min(2 * fed->retry, kMostRetry);
    fed->feed = nullptr;
  }
  if (now < fed->next || !fed->source->cache_wanted()) return;
  if (fed->keys > 0 && Keys() + fed->keys > limits_.all_keys) return;
  fed->feed = std::make_shared<Feed>(fed->source, this);
  fed->feed->Start(fed->feed);
}

}  // namespace aludel
