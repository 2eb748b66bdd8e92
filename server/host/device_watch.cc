#include "server/host/device_watch.h"

#include <csignal>
#include <string>
#include <utility>

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "kernels/device_health.h"
#include "spdlog/spdlog.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

constexpr absl::Duration kInterval = absl::Seconds(1);

}  // namespace

DeviceWatch::DeviceWatch(Timer* timer, std::function<void()> end) : timer_(timer), end_(std::move(end)) {
  Look();
}

DeviceWatch::~DeviceWatch() {
  Timer::Id next = 0;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    next = next_;
  }
  timer_->CancelAndWait(next);
}

absl::Status DeviceWatch::status() {
  const absl::Status lost = LostDevice();
  if (lost.ok()) return lost;
  return absl::UnavailableError(absl::StrCat("the GPU is lost to this process: ", lost.message()));
}

void DeviceWatch::Look() {
  const SlowProducts slow = SlowProductsMet();
  const absl::Status found = status();
  bool end = false;
  {
    absl::MutexLock lock(&mutex_);
    if (slow.shapes > slow_products_) {
      spdlog::warn(
          "cuBLASLt has no algorithm for {} shapes of products, the latest {}: a slower kernel computes them",
          slow.shapes, slow.latest);
      slow_products_ = slow.shapes;
    }
    end = !found.ok() && !std::exchange(ended_, true);
    if (!stopping_) next_ = timer_->At(MonotonicNow() + kInterval, [this] { Look(); });
  }
  if (!end) return;
  spdlog::critical("{}; this process ends, another one may find it again", std::string(found.message()));
  end_();
}

void StopThisProcess() { kill(getpid(), SIGTERM); }

}  // namespace aludel
