#include "server/rpc/cache_events/cache_event_service.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "server/rpc/rpc_status.h"

namespace aludel {

namespace {

// gRPC says "ipv4:HOST:PORT", "ipv6:%5BHOST%5D:PORT" or "unix:PATH".
std::string HostOf(const std::string& peer) { return peer.substr(0, peer.rfind(':')); }

}  // namespace

// One caller's. Owned by the service, and until gRPC is done with it by itself.
class CacheEventService::Stream : public grpc::ServerWriteReactor<v1::CacheEvent> {
 public:
  Stream(CacheEventService* service, grpc::CallbackServerContext* call, uint64_t number)
      : service_(service), call_(call), peer_(HostOf(call->peer())), number_(number) {}
  const std::string& peer() const { return peer_; }
  uint64_t number() const { return number_; }  // later ones have higher

  void Own(std::shared_ptr<Stream> self) { self_ = std::move(self); }
  void GoOn() {
    absl::MutexLock lock(&mutex_);
    Advance();
  }
  // A caller that takes no more of it is told nothing: else what drains would wait for it.
  void End(grpc::Status status) {
    absl::MutexLock lock(&mutex_);
    if (!status_) status_ = std::move(status);
    if (writing_ && !done_) call_->TryCancel();
    Advance();
  }

 private:
  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok && !status_) status_ = grpc::Status::CANCELLED;
    Advance();
  }
  void OnCancel() override {
    absl::MutexLock lock(&mutex_);
    if (!status_) status_ = grpc::Status::CANCELLED;
    Advance();
  }
  void OnDone() override {
    {
      absl::MutexLock lock(&mutex_);
      done_ = true;
    }
    const std::shared_ptr<Stream> self = std::move(self_);  // may be the last owner
    service_->Ended(self);
  }

  // gRPC starts operations without calling back into us on this thread, so the lock may be held.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (status_) {
      finished_ = true;
      this->Finish(*status_);
    } else if (service_->log_->Read(&reader_, &event_)) {
      writing_ = true;
      this->StartWrite(&event_);
    }
  }

  CacheEventService* const service_;
  grpc::CallbackServerContext* const call_;  // lives until OnDone
  const std::string peer_;
  const uint64_t number_;
  std::shared_ptr<Stream> self_;
  absl::Mutex mutex_;
  KeyLog::Reader reader_ ABSL_GUARDED_BY(mutex_);
  v1::CacheEvent event_ ABSL_GUARDED_BY(mutex_);  // gRPC's while writing_
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> status_ ABSL_GUARDED_BY(mutex_);
};

grpc::ServerWriteReactor<v1::CacheEvent>* CacheEventService::Watch(grpc::CallbackServerContext* call,
                                                                   const v1::WatchCacheRequest*) {
  absl::Status refused = check_(*call);
  std::shared_ptr<Stream> stream, displaced;
  {
    absl::MutexLock lock(&mutex_);
    if (refused.ok() && ending_) refused = absl::UnavailableError("this server is stopping");
    stream = std::make_shared<Stream>(this, call, ++calls_);
    stream->Own(stream);
    if (refused.ok() && streams_.size() >= kMaxStreams) {
      displaced = Displaced(stream->peer());
      if (displaced == nullptr) {
        refused =
            absl::ResourceExhaustedError(absl::StrCat("this server has ", kMaxStreams, " watchers already"));
      }
    }
    streams_.erase(displaced);
    if (refused.ok()) streams_.insert(stream);
  }
  if (displaced != nullptr) {
    displaced->End({grpc::StatusCode::RESOURCE_EXHAUSTED, "other hosts shall have a stream, too"});
  }
  if (refused.ok()) {
    stream->GoOn();
  } else {
    stream->End(ToGrpc(refused));
  }
  return stream.get();
}

std::shared_ptr<CacheEventService::Stream> CacheEventService::Displaced(const std::string& peer) const {
  absl::flat_hash_map<std::string, size_t> counts;
  for (const auto& stream : streams_) ++counts[stream->peer()];
  const auto most = absl::c_max_element(
      counts, [](const auto& one, const auto& other) { return one.second < other.second; });
  const auto own = counts.find(peer);
  if (most->second <= (own == counts.end() ? 0 : own->second) + 1) return nullptr;
  std::shared_ptr<Stream> oldest;
  for (const auto& stream : streams_) {
    if (stream->peer() != most->first) continue;
    if (oldest == nullptr || stream->number() < oldest->number()) oldest = stream;
  }
  return oldest;
}

void CacheEventService::Flush() {
  log_->OnRead();
  std::vector<std::shared_ptr<Stream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    streams.assign(streams_.begin(), streams_.end());
  }
  for (const auto& stream : streams) stream->GoOn();
}

void CacheEventService::End() {
  std::vector<std::shared_ptr<Stream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
    streams.assign(streams_.begin(), streams_.end());
  }
  for (const auto& stream : streams) stream->End({grpc::StatusCode::UNAVAILABLE, "this server is stopping"});
}

void CacheEventService::Ended(const std::shared_ptr<Stream>& stream) {
  absl::MutexLock lock(&mutex_);
  streams_.erase(stream);
}

}  // namespace aludel
