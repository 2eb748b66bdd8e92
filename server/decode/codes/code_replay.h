#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/frame.h"
#include "server/decode/codes/kept_codes.h"
#include "server/handoff/frame_arena.h"
#include "server/handoff/frame_ring.h"
#include "server/process/timer.h"
#include "server/store/feed/prefix_feed.h"

namespace aludel {

// One handoff from this server's own store: the frames of a prompt as they once came, in receive memory, as fast as the
// engine takes them. Nothing here waits on a thread.
//
//   made --Start--> replaying --done(OK): all frames are delivered
//                             --done(error): the store has lost some, or Stop was called
//
// Memory is held until the last reader of a frame has released it, however the replay ended. Thread-safe.
class CodeReplay : public FrameSink, public std::enable_shared_from_this<CodeReplay> {
 public:
  struct Spec {
    std::shared_ptr<const CodecSpec> codec;
    std::string salt;                  // the tenant's
    absl::Span<const int32_t> prompt;  // all of which is stored; must live until `done`
  };
  // As TicketOwner::OnFrameReceived.
  using Deliver = std::function<void(const FrameHeader& header, std::vector<uint8_t> header_bytes,
                                     absl::Span<const uint8_t> payload, std::function<void()> release)>;

  // `codes` and `timer` must outlive it.
  CodeReplay(const KeptCodes* codes, Timer* timer, Spec spec, FrameExtent extent, Deliver deliver);

  // `done` runs once, perhaps inside the call, else on the timer's thread, as `deliver` does before it.
  void Start(std::function<void(const absl::Status&)> done);
  void Stop();

  // FrameSink, for the feed: one reservation at a time.
  absl::StatusOr<absl::Span<uint8_t>> Reserve(size_t max_bytes) override;
  absl::Status Commit(const FrameCoverage& coverage, size_t bytes) override;

 private:
  bool HasRoom(size_t payload_bytes);
  void Release(const uint8_t* place);

  const KeptCodes* const codes_;
  Timer* const timer_;
  const Spec spec_;
  const Deliver deliver_;
  FrameHeader header_;  // of the next frame; the feed's thread
  absl::Span<uint8_t> reserved_;

  absl::Mutex mutex_;
  FrameRing ring_ ABSL_GUARDED_BY(mutex_);
  size_t largest_ ABSL_GUARDED_BY(mutex_) = 0;  // weight of a frame so far
  bool wants_room_ ABSL_GUARDED_BY(mutex_) = false;
  std::shared_ptr<PrefixFeed> feed_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
