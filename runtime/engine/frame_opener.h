#pragma once

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

// Checks frames and opens their payloads (PayloadOpener), one after the other, on a thread of its own that begins with the
// first: what takes long to decode holds up no step, and is decoded while later frames are on their way. Its calls are the
// engine thread's.
class FrameOpener {
 public:
  // `wake` is called on the opener's thread where there is something to Take, and must not block.
  explicit FrameOpener(std::function<void()> wake) : wake_(std::move(wake)) {}
  ~FrameOpener() { Stop(); }

  // `opener` lives in the frame's `codec_owner`, or outlives this. After Stop the frame waits for another Stop.
  void Push(PendingFrame frame, const PayloadOpener* opener);
  // The frames that are open, oldest first.
  std::vector<PendingFrame> Take();
  // Releases the frames of a sequence; one that is being opened at some later call.
  void Drop(SequenceId id);
  // Ends the thread, which finishes the frame it is at, and releases all frames.
  void Stop();

 private:
  struct Work {
    PendingFrame frame;
    const PayloadOpener* opener = nullptr;
  };
  void Run();
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !waiting_.empty(); }
  std::vector<PendingFrame> TakeDropped();

  const std::function<void()> wake_;
  std::thread thread_;
  absl::Mutex mutex_;
  std::deque<Work> waiting_ ABSL_GUARDED_BY(mutex_);
  // The sequence whose frame is being opened; 0: none, or it was dropped.
  SequenceId opening_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<PendingFrame> opened_ ABSL_GUARDED_BY(mutex_);
  std::vector<PendingFrame> dropped_ ABSL_GUARDED_BY(mutex_);  // to be released
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace aludel
