#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "runtime/codec/codec.h"
#include "server/prefill/kv_sender.h"
#include "server/process/timer.h"

namespace aludel {

// The second parts of one run's frames (CodecSpec::base_planes). They are kept, outside of the send arena, until all first parts
// have left: at most as many bytes as the prompt's whole frames may have. Then they leave one after the other, each when
// nothing else of the run is on its way, so that frames of other runs on the same link wait behind one of them at most.
//
//   FirstParts: frames come --Send--> sending --all have left, Stop, a send failed--> done
//
// Thread-safe. Frames are copied into the arena on the timer's thread.
class UpgradeQueue : public std::enable_shared_from_this<UpgradeQueue> {
 public:
  // `timer` must outlive it.
  UpgradeQueue(int base_planes, Timer* timer) : base_planes_(base_planes), timer_(timer) {}

  // Takes whole frames: their first parts go on to `sink`. DataLoss for a payload that has no second one.
  std::shared_ptr<FrameSink> FirstParts(std::shared_ptr<FrameSink> sink);
  // No more frames come. `done` runs once, on the timer's thread.
  void Send(std::shared_ptr<KvSender> sender, std::function<void()> done);
  // There may be room for a frame in the sender's window.
  void OnRoom();
  // What has not left does not any more.
  void Stop();

 private:
  class Splitter;
  struct Part {
    FrameCoverage coverage;
    std::vector<uint8_t> payload;
  };

  void Keep(const FrameCoverage& coverage, absl::Span<const uint8_t> payload);
  void RunSoon();
  void Run();
  // False: OnRoom will be called.
  bool SendAll();

  const int base_planes_;
  Timer* const timer_;

  // The timer's thread's, once sending.
  std::unique_ptr<KvSender::Lane> lane_;

  absl::Mutex mutex_;
  std::deque<Part> parts_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<KvSender> sender_ ABSL_GUARDED_BY(mutex_);  // from Send until done
  std::function<void()> done_ ABSL_GUARDED_BY(mutex_);        // likewise
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace aludel
