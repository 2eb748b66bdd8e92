#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "aludel/v1/handoff.grpc.pb.h"
#include "runtime/codec/frame.h"

namespace aludel {

// Grants a prefill server the room that the frames of one ticket have: the latest figure, one call at a time, so that of
// many raises while a call is under way one follows it. Thread-safe.
class CreditGrants : public std::enable_shared_from_this<CreditGrants> {
 public:
  // `stub` must live until the calls have ended, of which each keeps this object and `lost` alive. `deadline` is one of
  // MonotonicNow(). `lost` is called on gRPC's thread where a grant did not reach the server.
  CreditGrants(v1::Prefill::Stub* stub, const TicketId& ticket, absl::Time deadline,
               std::function<void(const absl::Status&)> lost);

  // The room for all frames since the first is now `credit` bytes, or what an earlier call said if that was more.
  void Raise(uint64_t credit);
  // No call begins after this, and `lost` is not called.
  void Stop();

 private:
  struct Call;

  void Send(uint64_t credit);
  void Sent(uint64_t credit, const grpc::Status& status);

  v1::Prefill::Stub* const stub_;
  const TicketId ticket_;
  const absl::Time deadline_;
  const std::function<void(const absl::Status&)> lost_;
  absl::Mutex mutex_;
  uint64_t credit_ ABSL_GUARDED_BY(mutex_) = 0;  // to be granted, or granted
  bool sending_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace aludel
