#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <thread>

#include "absl/time/time.h"
#include "transport/monotonic_clock.h"

namespace aludel {

// Knows for how long the threads of a pool, or gRPC's, have been at one piece of work that should be short: what a
// watchdog asks of threads that have no loop of their own. Thread-safe, without locks. Of more than kPlaces pieces at a
// time some are not seen.
class WorkClock {
 public:
  static constexpr size_t kPlaces = 64;

  // One piece of work, while it lives.
  class Work {
   public:
    explicit Work(WorkClock* clock) : place_(clock->Begin()) {}
    ~Work() {
      if (place_ != nullptr) place_->store(0, std::memory_order_relaxed);
    }
    Work(const Work&) = delete;
    Work& operator=(const Work&) = delete;

   private:
    std::atomic<int64_t>* const place_;
  };

  // Of the piece that began first; zero where none is under way.
  absl::Duration Longest() const {
    const int64_t now = absl::ToUnixNanos(MonotonicNow());
    int64_t longest = 0;
    for (const std::atomic<int64_t>& begun : begun_) {
      const int64_t at = begun.load(std::memory_order_relaxed);
      if (at != 0 && now - at > longest) longest = now - at;
    }
    return absl::Nanoseconds(longest);
  }

 private:
  std::atomic<int64_t>* Begin() {
    const int64_t now = absl::ToUnixNanos(MonotonicNow());
    const size_t first = std::hash<std::thread::id>()(std::this_thread::get_id());
    for (size_t i = 0; i < kPlaces; ++i) {
      std::atomic<int64_t>& place = begun_[(first + i) % kPlaces];
      int64_t free = 0;
      if (place.compare_exchange_strong(free, now, std::memory_order_relaxed)) return &place;
    }
    return nullptr;
  }

  std::array<std::atomic<int64_t>, kPlaces> begun_{};  // 0: free
};

}  // namespace aludel
