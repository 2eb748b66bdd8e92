#pragma once

#include <algorithm>
#include <chrono>

#include "absl/time/time.h"
#include "grpcpp/server_context.h"
#include "transport/monotonic_clock.h"

namespace aludel {

// Deadlines inside a server are times of MonotonicNow(), which setting the wall clock does not move. Between
// servers they travel as the time that is left (gRPC does that). These functions convert.

// When a call must have ended: its caller's deadline, and at most `limit` from now.
inline absl::Time DeadlineOf(const grpc::ServerContextBase& call, absl::Duration limit) {
  const absl::Duration left =
      absl::FromChrono(call.deadline()) - absl::FromChrono(std::chrono::system_clock::now());
  return MonotonicNow() + std::min(left, limit);
}

// For ClientContext::set_deadline. Not by absl::Now(), which follows a clock that was set only after seconds.
inline std::chrono::system_clock::time_point ToGrpcDeadline(absl::Time monotonic) {
  return absl::ToChronoTime(absl::FromChrono(std::chrono::system_clock::now()) +
                            (monotonic - MonotonicNow()));
}

// For the engine.
inline std::chrono::steady_clock::time_point ToSteadyTime(absl::Time monotonic) {
  using Steady = std::chrono::steady_clock;
  const absl::Duration since_epoch = monotonic - absl::UnixEpoch();
  if (since_epoch >= absl::FromChrono(Steady::time_point::max().time_since_epoch()))
    return Steady::time_point::max();
  return Steady::time_point(absl::ToChronoNanoseconds(since_epoch));
}

}  // namespace aludel
