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
    bool was_whole = false;
  };

  Feed(std::shared_ptr<CacheSource> source, CacheFeeds* feeds)
      : source_(std::move(source)), feeds_(feeds), mirror_(feeds->max_keys_) {}

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
  // Nothing while it runs.
  std::optional<End> end() {
    absl::MutexLock lock(&mutex_);
    return end_;
  }

 private:
  bool Hear() {
    switch (mirror_.Hear(event_)) {
      case CacheMirror::Heard::kNothing:
        return true;
      case CacheMirror::Heard::kSnapshot:
        said_.was_whole = true;
        said_.unknown = !source_->CacheKnown(mirror_);
        return !said_.unknown;
      case CacheMirror::Heard::kChanges:
        said_.unknown = !source_->CacheChanged(mirror_);
        return !said_.unknown;
      case CacheMirror::Heard::kTooMany:
        said_.unknown = true;
        return false;
      case CacheMirror::Heard::kBroken:
        spdlog::warn("{}: what it says of its cache does not hold together; it is asked again",
                     source_->cache_name());
        return false;
    }
    return false;
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
    said_.unknown |= status.error_code() == grpc::StatusCode::UNIMPLEMENTED;
    {
      absl::MutexLock lock(&mutex_);
      end_ = said_;
    }
    feeds_->Ended();
  }

  std::shared_ptr<CacheSource> source_;
  CacheFeeds* const feeds_;
  std::shared_ptr<Feed> self_;
  grpc::ClientContext context_;
  v1::WatchCacheRequest request_;
  v1::CacheEvent event_;
  CacheMirror mirror_;
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
    Tend(&fed);
    fed_.emplace(source.get(), std::move(fed));
  }
  for (const auto& [key, fed] : before) {
    if (fed.feed != nullptr) fed.feed->Cancel();
  }
}

void CacheFeeds::Tend(Fed* fed) {
  const absl::Time now = MonotonicNow();
  if (fed->feed != nullptr) {
    const std::optional<Feed::End> end = fed->feed->end();
    if (!end) return;
    if (end->was_whole) fed->retry = kFirstRetry;
    fed->next = now + (end->unknown ? kUnknownRetry : fed->retry);
    fed->retry = std::min(2 * fed->retry, kMostRetry);
    fed->feed = nullptr;
  }
  if (now < fed->next || !fed->source->cache_wanted()) return;
  fed->feed = std::make_shared<Feed>(fed->source, this);
  fed->feed->Start(fed->feed);
}

}  // namespace aludel
