#include "kernels/device_health.h"

#include <mutex>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#ifdef ALUDEL_HAVE_CUDA
#include "kernels/cuda/cuda_device.h"
#endif

namespace aludel {
namespace {

struct Health {
  std::mutex mutex;  // guards all below
  absl::Status lost;
  SlowProducts slow;
  TimedProducts timed;
};

Health& TheHealth() {
  static auto* const health = new Health;  // never destroyed: devices may outlive statics
  return *health;
}

}  // namespace

absl::Status LostDevice() {
  Health& health = TheHealth();
  const std::lock_guard lock(health.mutex);
  return health.lost;
}

void ReportLostDevice(const absl::Status& error) {
  Health& health = TheHealth();
  const std::lock_guard lock(health.mutex);
  if (health.lost.ok()) health.lost = error;
}

SlowProducts SlowProductsMet() {
  Health& health = TheHealth();
  const std::lock_guard lock(health.mutex);
  return health.slow;
}

void ReportSlowProduct(std::string shape) {
  Health& health = TheHealth();
  const std::lock_guard lock(health.mutex);
  ++health.slow.shapes;
  health.slow.latest = std::move(shape);
}

TimedProducts ProductsTimed() {
  Health& health = TheHealth();
  const std::lock_guard lock(health.mutex);
  return health.timed;
}

void ReportTimedProduct(bool improved, double milliseconds) {
  Health& health = TheHealth();
  const std::lock_guard lock(health.mutex);
  ++health.timed.shapes;
  health.timed.improved += improved;
  health.timed.milliseconds += milliseconds;
}

std::optional<int64_t> FreeDeviceMemory(const std::string& name) {
#ifdef ALUDEL_HAVE_CUDA
  absl::string_view rest = name;
  int ordinal = 0;
  if (absl::ConsumePrefix(&rest, "cuda:") && absl::SimpleAtoi(rest, &ordinal)) return FreeCudaMemory(ordinal);
#else
  static_cast<void>(name);
#endif
  return std::nullopt;
}

}  // namespace aludel
