#include "server/host/device_watch.h"

#include <string>
#include <utility>

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
  const TimedProducts timed = ProductsTimed();
  if (const absl::Status found = status(); !found.ok()) {
    spdlog::critical("{}; this process ends, another one may find it again", std::string(found.message()));
    return end_();  // the destructor waits for this call: no other is due
  }
  absl::MutexLock lock(&mutex_);
  if (slow.shapes > slow_products_) {
    spdlog::warn(
        "cuBLASLt has no algorithm for {} shapes of products, the latest {}: a slower kernel computes them",
        slow.shapes, slow.latest);
    slow_products_ = slow.shapes;
  }
  if (timed.shapes > timed_products_) {
    spdlog::info(
        "cuBLASLt: {} shapes of products timed in {:.0f} ms, another algorithm than its first kept for {}",
        timed.shapes, timed.milliseconds, timed.improved);
    timed_products_ = timed.shapes;
  }
  if (!stopping_) next_ = timer_->At(MonotonicNow() + kInterval, [this] { Look(); });
}

}  // namespace aludel
