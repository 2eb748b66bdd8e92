#include "runtime/engine/frame_opener.h"

#include <pthread.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace aludel {
namespace {

absl::StatusOr<std::unique_ptr<OpenedPayload>> Open(const PendingFrame& frame, const PayloadOpener& opener) {
  const absl::Status whole = VerifyFrame(frame.header_bytes, frame.payload);
  if (!whole.ok()) return whole;
  return opener.Open(frame.header.coverage, frame.payload);
}

void Release(const std::vector<PendingFrame>& frames) {
  for (const PendingFrame& frame : frames) frame.release();
}

}  // namespace

void FrameOpener::Push(PendingFrame frame, const PayloadOpener* opener) {
  if (threads_.size() < most_threads_) threads_.emplace_back([this, n = threads_.size()] { Run(n); });
  absl::MutexLock lock(&mutex_);
  waiting_.push_back({std::move(frame), opener});
}

std::vector<PendingFrame> FrameOpener::Take() {
  if (threads_.empty()) return {};  // most engines never have one, and ask before each step
  Release(TakeDropped());
  absl::MutexLock lock(&mutex_);
  return std::exchange(opened_, {});
}

void FrameOpener::Drop(SequenceId id) {
  {
    absl::MutexLock lock(&mutex_);
    std::deque<Work> waiting;
    for (Work& work : waiting_) {
      if (work.frame.id != id) {
        waiting.push_back(std::move(work));
      } else {
        dropped_.push_back(std::move(work.frame));
      }
    }
    waiting_ = std::move(waiting);
    std::vector<PendingFrame> opened;
    for (PendingFrame& frame : opened_) (frame.id == id ? dropped_ : opened).push_back(std::move(frame));
    opened_ = std::move(opened);
    std::replace(opening_.begin(), opening_.end(), id, kNone);
  }
  Release(TakeDropped());
}

void FrameOpener::Stop() {
  if (threads_.empty()) return;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  std::deque<Work> waiting;
  std::vector<PendingFrame> opened;
  {
    absl::MutexLock lock(&mutex_);
    waiting = std::exchange(waiting_, {});
    opened = std::exchange(opened_, {});
  }
  for (const Work& work : waiting) work.frame.release();
  Release(opened);
  Release(TakeDropped());
}

std::vector<PendingFrame> FrameOpener::TakeDropped() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(dropped_, {});
}

void FrameOpener::Run(size_t thread) {
  pthread_setname_np(pthread_self(), "aludel-opener");
  for (;;) {
    Work work;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &FrameOpener::HasWork));
      if (stopping_) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
      opening_[thread] = work.frame.id;
    }
    work.frame.opened = Open(work.frame, *work.opener);
    {
      absl::MutexLock lock(&mutex_);
      (opening_[thread] == kNone ? dropped_ : opened_).push_back(std::move(work.frame));
      opening_[thread] = kNone;
    }
    wake_();
  }
}

}  // namespace aludel
