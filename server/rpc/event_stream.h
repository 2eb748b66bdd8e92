#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"

namespace aludel {

// What became of an event that was pushed.
enum class Pushed {
  kTaken,
  kFull,  // the reader is too slow: nothing was queued
  kGone,  // the client has gone, or the stream has ended
};

// The server's end of one server-streaming call: sends events in order, one write at a time, with at most
// `max_backlog` waiting behind a slow reader. Thread-safe. Owns itself until gRPC is done with it; holders
// keep it alive longer by their shared_ptr. The creator must make sure that End is called on every path: gRPC
// waits for it.
template <typename Event>
class EventStream : public grpc::ServerWriteReactor<Event> {
 public:
  // `on_cancel` runs at most once, when the client has gone or its deadline has passed.
  static std::shared_ptr<EventStream> Create(grpc::CallbackServerContext* call, size_t max_backlog,
                                             std::function<void()> on_cancel) {
    std::shared_ptr<EventStream> stream(new EventStream(call, max_backlog, std::move(on_cancel)));
    stream->self_ = stream;
    return stream;
  }

  // kGone may come before `on_cancel` runs: a write fails as soon as the connection does.
  Pushed Push(Event event) {
    absl::MutexLock lock(&mutex_);
    if (ended_ || broken_) return Pushed::kGone;
    if (queue_.size() >= max_backlog_) return Pushed::kFull;
    queue_.push_back(std::move(event));
    Advance();
    return Pushed::kTaken;
  }

  // Ends the stream after what was pushed, or, with an error, after the event that is being written. The
  // first call wins. A reader that takes nothing holds the call open all the same: see Abort.
  void End(grpc::Status status) {
    absl::MutexLock lock(&mutex_);
    if (ended_) return;
    ended_ = true;
    status_ = std::move(status);
    // An error does not wait behind a backlog that a slow reader may never take.
    if (!status_.ok() && queue_.size() > (writing_ ? 1u : 0u)) {
      queue_.erase(queue_.begin() + (writing_ ? 1 : 0), queue_.end());
    }
    Advance();
  }

  // What `report` returns goes as metadata of that key, once with the first event and once with the end. It is called under
  // this stream's lock, and must outlive the call. Before the first Push and End.
  void ReportWith(const char* key, std::function<std::string()> report) {
    absl::MutexLock lock(&mutex_);
    report_key_ = key;
    report_ = std::move(report);
  }

  // Keeps `held` until gRPC is done with the call.
  void Hold(std::shared_ptr<const void> held) {
    absl::MutexLock lock(&mutex_);
    if (!done_) held_ = std::move(held);
  }

  // Cancels the call if it is still open: for a client that neither reads nor goes.
  void Abort() {
    absl::MutexLock lock(&mutex_);
    if (!done_) call_->TryCancel();
  }

 private:
  EventStream(grpc::CallbackServerContext* call, size_t max_backlog, std::function<void()> on_cancel)
      : call_(call), max_backlog_(max_backlog), on_cancel_(std::move(on_cancel)) {}

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    queue_.pop_front();
    if (!ok) {
      broken_ = true;
      queue_.clear();
    }
    Advance();
  }

  void OnCancel() override {
    {
      absl::MutexLock lock(&mutex_);
      broken_ = true;
    }
    if (on_cancel_) on_cancel_();
  }

  void OnDone() override {
    const std::shared_ptr<EventStream> self = std::move(self_);  // may be the last owner
    absl::MutexLock lock(&mutex_);
    done_ = true;
    held_.reset();
  }

  // gRPC starts operations without calling back into us on this thread, so the lock may be held.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (!queue_.empty()) {
      writing_ = true;
      if (report_ && !std::exchange(began_, true)) call_->AddInitialMetadata(report_key_, report_());
      this->StartWrite(&queue_.front());
    } else if (ended_) {
      finished_ = true;
      if (report_ && !broken_) call_->AddTrailingMetadata(report_key_, report_());
      this->Finish(status_);
    }
  }

  grpc::CallbackServerContext* const call_;  // gRPC's, until OnDone
  const size_t max_backlog_;
  const std::function<void()> on_cancel_;
  std::shared_ptr<EventStream> self_;
  absl::Mutex mutex_;
  std::deque<Event> queue_ ABSL_GUARDED_BY(mutex_);  // the front is being written while writing_
  const char* report_key_ ABSL_GUARDED_BY(mutex_) = "";
  std::function<std::string()> report_ ABSL_GUARDED_BY(mutex_);
  bool began_ ABSL_GUARDED_BY(mutex_) = false;  // an event was written
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool broken_ ABSL_GUARDED_BY(mutex_) = false;  // the client is gone; only Finish remains
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const void> held_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
