#include "server/rpc/shutdown.h"

#include <cstdlib>

#include "absl/time/clock.h"
#include "grpcpp/health_check_service_interface.h"
#include "server/rpc/deadline.h"
#include "spdlog/spdlog.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

constexpr absl::Duration kStuckAfter = absl::Seconds(15);

}  // namespace

void DrainAndShutdown(grpc::Server& server, absl::Duration drain, Timer& timer) {
  const Timer::Id stuck = timer.At(MonotonicNow() + drain + kStuckAfter, [] {
    spdlog::critical("calls did not end although they were cancelled: exiting");
    std::_Exit(1);
  });
  server.GetHealthCheckService()->SetServingStatus(false);
  server.Shutdown(ToGrpcDeadline(MonotonicNow() + drain));
  timer.Cancel(stuck);
}

void AwaitNone(const char* what, const std::function<int64_t()>& left, absl::Duration limit) {
  const absl::Time until = MonotonicNow() + limit;
  while (left() > 0 && MonotonicNow() < until) absl::SleepFor(absl::Milliseconds(5));
  if (left() == 0) return;
  spdlog::critical("{} {} do not end: exiting", left(), what);
  std::_Exit(1);
}

}  // namespace aludel
