#pragma once

#include <cstdint>
#include <deque>
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
// Nothing here waits for room: who writes asks HasRoom first and is called back when there is room.
//
// Frames come by lanes, one for each thread that makes them (stored ones and those of the engine come at the same time).
// The window and the connection are held until the last send has ended, whatever happened to the run: memory that the
// transport may still read is never reused. Thread-safe.
class KvSender : public std::enable_shared_from_this<KvSender> {
 public:
  // One writer's way into the window. Its calls come from one thread at a time; lanes do not wait for each other but
  // while a frame is sealed and handed to the transport.
  class Lane final : public FrameSink {
   public:
    // `alone`: it has room only while nothing else of the handoff is on its way.
    explicit Lane(std::shared_ptr<KvSender> sender, bool alone = false);
    ~Lane() override;
    Lane(const Lane&) = delete;
    Lane& operator=(const Lane&) = delete;

    // Whether frames of this weight (FrameRing::Weight), each at most `frame`, can be reserved now. If so, that room is
    // this lane's until it has used it, asks again or gives it back. Also true when a send has failed: Reserve returns
    // its error. After false, `on_room` is called once, unless Finish comes first.
    bool HasRoom(size_t weight, size_t frame);
    // Gives back the room that is left of the last HasRoom.
    void GiveBack();
    // ResourceExhausted without room; the error of an earlier send when one has failed.
    absl::StatusOr<absl::Span<uint8_t>> Reserve(size_t max_bytes) override;
    absl::Status Commit(const FrameCoverage& coverage, size_t bytes) override;

   private:
    friend class KvSender;
    const std::shared_ptr<KvSender> sender_;
    const bool alone_;
    struct Reserved {
      absl::Span<uint8_t> place;  // tag included
      absl::Time encoded_from;    // where times are recorded
    };
    std::deque<Reserved> reserved_;  // those that await their Commit, oldest first
    // With the sender's mutex:
    size_t kept_ = 0;           // weight of the room that is this lane's
    size_t wanted_weight_ = 0;  // of the last HasRoom that returned false; 0: none
    size_t wanted_frame_ = 0;
  };

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
    std::unique_ptr<FrameCipher> cipher;  // null: frames leave as they are
    std::optional<uint64_t> credit = {};  // weight of the frames that may leave before a Grant; none: all
    bool record_times = false;            // for TakeTimes
    // A HasRoom that returned false would not any more: all lanes that heard so ask again. On any thread.
    std::function<void()> on_room = nullptr;
  };

  // `metrics` must outlive the sender; the codec is only read here.
  static std::shared_ptr<KvSender> Create(Spec spec, const PrefillMetrics* metrics);

  // Raises the weight of frames that may have left, counted from the first. Never shrinks.
  void Grant(uint64_t credit);

  // When each frame was encoded and sent, in the order of their sending, counted from `origin`.
  std::vector<v1::FrameTimes> TakeTimes(absl::Time origin);

  // No Commit follows. `done` runs once, when every send has ended; perhaps inside the call, perhaps on the
  // transport's thread.
  void Finish(std::function<void(const Outcome&)> done);

 private:
  KvSender(Spec spec, const PrefillMetrics* metrics);
  bool HasRoom(Lane& lane, size_t weight, size_t frame);
  absl::StatusOr<absl::Span<uint8_t>> Reserve(Lane& lane, size_t max_bytes);
  void Commit(Lane& lane, const FrameCoverage& coverage, size_t bytes);
  void OnSent(const uint8_t* place, const absl::Status& status);
  // Beside the room that other lanes keep.
  bool Fits(const Lane& lane, size_t weight, size_t frame) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t KeptByOthers(const Lane& lane) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
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

  // Frames are numbered, sealed and handed over in one order. Taken before mutex_.
  absl::Mutex order_mutex_;
  std::vector<Times> times_ ABSL_GUARDED_BY(order_mutex_);  // bounded by the frames of the prompt
  FrameHeader header_ ABSL_GUARDED_BY(order_mutex_);        // ticket, epoch, kind and artifact of every frame

  absl::Mutex mutex_;
  std::vector<Lane*> lanes_ ABSL_GUARDED_BY(mutex_);
  FrameRing ring_ ABSL_GUARDED_BY(mutex_);
  std::optional<uint64_t> credit_ ABSL_GUARDED_BY(mutex_);
  uint64_t weight_ ABSL_GUARDED_BY(mutex_) = 0;  // of all frames that have left
  size_t open_ ABSL_GUARDED_BY(mutex_) = 0;      // of what is reserved and not committed
  size_t largest_ ABSL_GUARDED_BY(mutex_) = 0;   // weight of a place
  bool finishing_ ABSL_GUARDED_BY(mutex_) = false;
  int unfinished_ ABSL_GUARDED_BY(mutex_) = 0;
  Outcome outcome_ ABSL_GUARDED_BY(mutex_);
  std::function<void(const Outcome&)> done_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
