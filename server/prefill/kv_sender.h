#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/frame.h"
#include "server/frame_arena.h"
#include "server/frame_cipher.h"
#include "server/metrics.h"
#include "server/prefill/peer_connection.h"

namespace aludel {

// Ships one hand-over's frames: the codec writes each payload straight into registered memory, and the frame
// leaves as a message of the transport, its header as the message's header. Reserve and Commit come from one
// thread at a time (cached frames first, then the engine thread), the rest from any. The extent and the
// connection are held until the last send has ended, whatever happened to the run: memory that the transport
// may still read is never reused.
class KvSender : public FrameSink, public std::enable_shared_from_this<KvSender> {
 public:
  struct Outcome {
    absl::Status status;  // of the first send that failed
    uint64_t frames = 0;
    uint64_t frame_bytes = 0;  // headers included
  };

  // `codec` and `metrics` must outlive the sender. With a `cipher` frames leave encrypted.
  static std::shared_ptr<KvSender> Create(std::shared_ptr<PeerConnection> connection, FrameExtent extent,
                                          const TicketId& ticket, uint64_t epoch, const KvCodec& codec,
                                          std::unique_ptr<FrameCipher> cipher, Metrics* metrics);

  // ResourceExhausted when the extent is full; the error of an earlier send when one has failed.
  absl::StatusOr<absl::Span<uint8_t>> Reserve(size_t max_bytes) override;
  absl::Status Commit(const FrameCoverage& coverage, size_t bytes) override;

  // No Commit follows. `done` runs once, when every send has ended; perhaps inside the call, perhaps on the
  // transport's thread.
  void Finish(std::function<void(const Outcome&)> done);

 private:
  KvSender(std::shared_ptr<PeerConnection> connection, FrameExtent extent, const FrameHeader& header,
           const std::string& format, std::unique_ptr<FrameCipher> cipher, Metrics* metrics);
  void OnSent(const absl::Status& status);

  const std::shared_ptr<PeerConnection> connection_;
  const FrameExtent extent_;
  const std::string format_;
  const std::unique_ptr<FrameCipher> cipher_;  // may be null
  Metrics* const metrics_;
  FrameHeader header_;   // ticket, epoch, kind and artefact of every frame; with Commit
  size_t used_ = 0;      // of the extent; with Commit
  size_t reserved_ = 0;  // by the Reserve that awaits its Commit

  absl::Mutex mutex_;
  int unfinished_ ABSL_GUARDED_BY(mutex_) = 0;
  Outcome outcome_ ABSL_GUARDED_BY(mutex_);
  std::function<void(const Outcome&)> done_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
