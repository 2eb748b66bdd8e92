#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "aludel/v1/handoff.pb.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/frame.h"
#include "server/handoff/frame_cipher.h"
#include "server/handoff/frame_ring.h"
#include "server/prefill/peer_connection.h"
#include "server/prefill/prefill_metrics.h"

namespace aludel {

// Ships one handoff's frames: the codec writes each payload straight into registered memory, and the frame
// leaves as a message of the transport, its header as the message's header. A place is free again when its
// send has ended; where the receiver grants credit, no more frames leave than it has room for (HANDOFF.md).
// Nothing here waits: the encoder asks HasRoom first and is called back when there is room.
//
// Reserve and Commit come from one thread at a time (cached frames first, then the engine thread), the rest
// from any. The window and the connection are held until the last send has ended, whatever happened to the
// run: memory that the transport may still read is never reused.
class KvSender : public FrameSink, public std::enable_shared_from_this<KvSender> {
 public:
  struct Outcome {
    absl::Status status;  // of the first send that failed
    uint64_t frames = 0;
    uint64_t frame_bytes = 0;  // headers included
  };
  struct Spec {
    std::shared_ptr<PeerConnection> connection;
    FrameExtent window;
    TicketId ticket = {};
    uint64_t epoch = 0;
    const CodecSpec* codec = nullptr;
    std::unique_ptr<FrameCipher> cipher;      // null: frames leave as they are
    std::optional<uint64_t> credit = {};      // weight of the frames that may leave before a Grant; none: all
    bool record_times = false;                // for TakeTimes
    std::function<void()> on_room = nullptr;  // HasRoom returned false and would not any more; on any thread
  };

  // `metrics` must outlive the sender; the codec is only read here.
  static std::shared_ptr<KvSender> Create(Spec spec, const PrefillMetrics* metrics);

  // Whether frames of this weight (FrameRing::Weight), each at most `frame`, can be reserved now. Also true
  // when a send has failed: Reserve returns its error. After false, `on_room` is called once, unless Finish
  // comes first.
  bool HasRoom(size_t weight, size_t frame);
  // Raises the weight of frames that may have left, counted from the first. Never shrinks.
  void Grant(uint64_t credit);

  // ResourceExhausted without room; the error of an earlier send when one has failed.
  absl::StatusOr<absl::Span<uint8_t>> Reserve(size_t max_bytes) override;
  absl::Status Commit(const FrameCoverage& coverage, size_t bytes) override;

  // When each frame was encoded and sent, counted from `origin`. With Commit.
  std::vector<v1::FrameTimes> TakeTimes(absl::Time origin);

  // No Commit follows. `done` runs once, when every send has ended; perhaps inside the call, perhaps on the
  // transport's thread.
  void Finish(std::function<void(const Outcome&)> done);

 private:
  KvSender(Spec spec, const PrefillMetrics* metrics);
  void OnSent(const uint8_t* place, const absl::Status& status);
  bool Fits(size_t weight, size_t frame) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The callback to run after the lock is released, because there is room now; null: none.
  std::function<void()> TakeRoomCall() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::shared_ptr<PeerConnection> connection_;
  const std::string format_;
  const std::unique_ptr<FrameCipher> cipher_;  // may be null
  const std::function<void()> on_room_;
  const PrefillMetrics* const metrics_;
  const bool record_times_;
  struct Times {
    FrameCoverage coverage;
    absl::Time encoded_from;
    absl::Time sent;
  };
  std::vector<Times> times_;      // with Commit; bounded by the frames of the prompt
  absl::Time encoded_from_;       // with Commit
  FrameHeader header_;            // ticket, epoch, kind and artifact of every frame; with Commit
  absl::Span<uint8_t> reserved_;  // the Reserve that awaits its Commit, tag included; with Commit

  absl::Mutex mutex_;
  FrameRing ring_ ABSL_GUARDED_BY(mutex_);
  std::optional<uint64_t> credit_ ABSL_GUARDED_BY(mutex_);
  uint64_t weight_ ABSL_GUARDED_BY(mutex_) = 0;       // of all frames that have left
  size_t wanted_weight_ ABSL_GUARDED_BY(mutex_) = 0;  // of the last HasRoom that returned false; 0: none
  size_t wanted_frame_ ABSL_GUARDED_BY(mutex_) = 0;
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  int unfinished_ ABSL_GUARDED_BY(mutex_) = 0;
  Outcome outcome_ ABSL_GUARDED_BY(mutex_);
  std::function<void(const Outcome&)> done_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
