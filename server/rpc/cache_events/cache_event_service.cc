#include "server/rpc/cache_events/cache_event_service.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/rpc/rpc_status.h"

namespace aludel {

// One caller's. Owned by the service, and until gRPC is done with it by itself.
class CacheEventService::Stream : public grpc::ServerWriteReactor<v1::CacheEvent> {
 public:
  explicit Stream(CacheEventService* service) : service_(service) {}

  void Own(std::shared_ptr<Stream> self) { self_ = std::move(self); }
  void GoOn() {
    absl::MutexLock lock(&mutex_);
    Advance();
  }
  void End(grpc::Status status) {
    absl::MutexLock lock(&mutex_);
    if (!status_) status_ = std::move(status);
    Advance();
  }

 private:
  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok && !status_) status_ = grpc::Status::CANCELLED;
    Advance();
  }
  void OnCancel() override { End(grpc::Status::CANCELLED); }
  void OnDone() override {
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
  std::shared_ptr<Stream> self_;
  absl::Mutex mutex_;
  KeyLog::Reader reader_ ABSL_GUARDED_BY(mutex_);
  v1::CacheEvent event_ ABSL_GUARDED_BY(mutex_);  // gRPC's while writing_
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> status_ ABSL_GUARDED_BY(mutex_);
};

grpc::ServerWriteReactor<v1::CacheEvent>* CacheEventService::Watch(grpc::CallbackServerContext* call,
                                                                   const v1::WatchCacheRequest*) {
  const auto stream = std::make_shared<Stream>(this);
  stream->Own(stream);
  absl::Status refused = check_(*call);
  {
    absl::MutexLock lock(&mutex_);
    if (refused.ok() && ending_) refused = absl::UnavailableError("this server is stopping");
    if (refused.ok() && streams_.size() >= kMaxStreams) {
      refused =
          absl::ResourceExhaustedError(absl::StrCat("this server has ", kMaxStreams, " watchers already"));
    }
    if (refused.ok()) streams_.insert(stream);
  }
  if (refused.ok()) {
    stream->GoOn();
  } else {
    stream->End(ToGrpc(refused));
  }
  return stream.get();
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
