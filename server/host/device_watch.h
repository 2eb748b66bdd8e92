#pragma once

#include <cstdint>
#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "server/process/timer.h"

namespace aludel {

// Looks once a second at what the process's GPU has met (kernels/device_health.h): products that are slow for want of an
// algorithm and products that were timed are logged, and a GPU that is lost ends the process, since nothing but another
// process gets it back. Readiness and peers' health ask status(), which knows at once. Thread-safe.
class DeviceWatch {
 public:
  // `end` is called once, on the timer's thread (here where the GPU is lost already), and begins the end of the process: nothing
  // is looked at behind it. `timer` must outlive the watch.
  DeviceWatch(Timer* timer, std::function<void()> end);
  ~DeviceWatch();

  // Ok, or Unavailable and the error that the GPU was lost with.
  static absl::Status status();

 private:
  void Look();

  Timer* const timer_;
  const std::function<void()> end_;
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t slow_products_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t timed_products_ ABSL_GUARDED_BY(mutex_) = 0;
  Timer::Id next_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace aludel
