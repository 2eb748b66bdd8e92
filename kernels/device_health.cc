#include "kernels/device_health.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#ifdef ALUDEL_HAVE_CUDA
#include "kernels/cuda/cuda_device.h"
#endif

namespace aludel {
namespace {

struct Health {
  absl::Mutex mutex;
  absl::Status lost ABSL_GUARDED_BY(mutex);
  SlowProducts slow ABSL_GUARDED_BY(mutex);
};

Health& TheHealth() {
  static auto* const health = new Health;  // never destroyed: devices may outlive statics
  return *health;
}

}  // namespace

absl::Status LostDevice() {
  Health& health = TheHealth();
  absl::MutexLock lock(&health.mutex);
  return health.lost;
}

void ReportLostDevice(const absl::Status& error) {
  Health& health = TheHealth();
  absl::MutexLock lock(&health.mutex);
  if (health.lost.ok()) health.lost = error;
}

SlowProducts SlowProductsMet() {
  Health& health = TheHealth();
  absl::MutexLock lock(&health.mutex);
  return health.slow;
}

void ReportSlowProduct(std::string shape) {
  Health& health = TheHealth();
  absl::MutexLock lock(&health.mutex);
  ++health.slow.shapes;
  health.slow.latest = std::move(shape);
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
