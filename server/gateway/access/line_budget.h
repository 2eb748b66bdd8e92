#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace aludel {

// Rate-limits log lines that a client can trigger. Thread-safe.
class LineBudget {
 public:
  using Clock = std::function<absl::Time()>;
  explicit LineBudget(int lines_per_second, Clock clock = absl::Now)
      : lines_per_second_(lines_per_second), clock_(std::move(clock)) {}

  // nullopt: not this one. Else how many there were without a line since the last that had one.
  std::optional<int64_t> Take() {
    const int64_t now = absl::ToUnixSeconds(clock_());
    absl::MutexLock lock(&mutex_);
    if (now != second_) {
      second_ = now;
      taken_ = 0;
    }
    if (taken_ >= lines_per_second_) {
      ++left_out_;
      return std::nullopt;
    }
    ++taken_;
    return std::exchange(left_out_, 0);
  }

 private:
  const int lines_per_second_;
  const Clock clock_;
  absl::Mutex mutex_;
  int64_t second_ ABSL_GUARDED_BY(mutex_) = 0;
  int taken_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t left_out_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace aludel
