#pragma once

#include <cstdint>
#include <functional>

#include "absl/time/time.h"
#include "grpcpp/server.h"
#include "server/process/timer.h"

namespace aludel {

// Stops a gRPC server gently: reports NOT_SERVING, takes no new call, lets running ones end by themselves for
// `drain`, then cancels them. Returns when the last one has ended. A call that does not end although it was
// cancelled means that a thread of ours is stuck: after some more seconds the process exits with 1, because a
// supervisor can restart a dead process but not a hung one.
void DrainAndShutdown(grpc::Server& server, absl::Duration drain, Timer& timer);

// Waits until nothing is `left` of what still uses the server's parts. After `limit` the process exits with
// 1: memory that may still be written to is never freed.
void AwaitNone(const char* what, const std::function<int64_t()>& left, absl::Duration limit);

}  // namespace aludel
