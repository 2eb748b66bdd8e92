#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "runtime/codec/codec.h"
#include "runtime/engine/pending_frame.h"

namespace aludel {

// Checks frames and opens their payloads (PayloadOpener) on threads of its own that begin with the first: what takes long to
// decode holds up no step, and is decoded while later frames are on their way. Its calls are the engine thread's.
class FrameOpener {
 public:
  // `wake` is called on an opener's thread where there is something to Take, and must not block. `threads`: frames opened at a
  // time, at least 1.
  FrameOpener(size_t threads, std::function<void()> wake)
      : most_threads_(threads), wake_(std::move(wake)), opening_(threads, kNone) {}
  ~FrameOpener() { Stop(); }

  // `opener` lives in the frame's `codec_owner`, or outlives this. After Stop the frame waits for another Stop.
  void Push(PendingFrame frame, const PayloadOpener* opener);
  // The frames that are open, in the order in which they came to be.
  std::vector<PendingFrame> Take();
  // Releases the frames of a sequence; those that are being opened at some later call.
  void Drop(SequenceId id);
  // Ends the threads, which finish the frames they are at, and releases all frames.
  void Stop();

 private:
  struct Work {
    PendingFrame frame;
    const PayloadOpener* opener = nullptr;
  };
  void Run(size_t thread);
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !waiting_.empty(); }
  std::vector<PendingFrame> TakeDropped();

  static constexpr SequenceId kNone = 0;

  const size_t most_threads_;
  const std::function<void()> wake_;
  std::vector<std::thread> threads_;
  absl::Mutex mutex_;
  std::deque<Work> waiting_ ABSL_GUARDED_BY(mutex_);
  // [threads] The sequence whose frame each is opening; none, too, where that was dropped.
  std::vector<SequenceId> opening_ ABSL_GUARDED_BY(mutex_);
  std::vector<PendingFrame> opened_ ABSL_GUARDED_BY(mutex_);
  std::vector<PendingFrame> dropped_ ABSL_GUARDED_BY(mutex_);  // to be released
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace aludel
