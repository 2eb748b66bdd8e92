#include "runtime/engine/frame_opener.h"

#include <pthread.h>

#include <utility>

namespace aludel {
namespace {

absl::StatusOr<std::vector<uint8_t>> Open(const PendingFrame& frame, const PayloadOpener& opener) {
  const absl::Status whole = VerifyFrame(frame.header_bytes, frame.payload);
  if (!whole.ok()) return whole;
  return opener.Open(frame.header.coverage, frame.payload);
}

void Release(const std::vector<PendingFrame>& frames) {
  for (const PendingFrame& frame : frames) frame.release();
}

}  // namespace

void FrameOpener::Push(PendingFrame frame, const PayloadOpener* opener) {
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  absl::MutexLock lock(&mutex_);
  waiting_.push_back({std::move(frame), opener});
}

std::vector<PendingFrame> FrameOpener::Take() {
  if (!thread_.joinable()) return {};  // most engines never have one, and ask before each step
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
    if (opening_ == id) opening_ = 0;
  }
  Release(TakeDropped());
}

void FrameOpener::Stop() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
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

void FrameOpener::Run() {
  pthread_setname_np(pthread_self(), "aludel-opener");
  for (;;) {
    Work work;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &FrameOpener::HasWork));
      if (stopping_) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
      opening_ = work.frame.id;
    }
    work.frame.opened = Open(work.frame, *work.opener);
    {
      absl::MutexLock lock(&mutex_);
      (opening_ == 0 ? dropped_ : opened_).push_back(std::move(work.frame));
      opening_ = 0;
    }
    wake_();
  }
}

}  // namespace aludel
