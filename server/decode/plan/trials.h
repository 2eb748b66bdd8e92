#pragma once

#include <atomic>
#include <cstdint>

namespace aludel {

// Counts the requests that try a plan with a hedge behind it, from the plan to the first token. The hedge begins only
// when the handoff is late, and must find a place then. Thread-safe.
class Trials {
 public:
  // False, and not counted, where those that are open and the `hedges` that run fill `places`.
  bool Begin(int64_t hedges, int64_t places) {
    int64_t open = open_.load();
    while (open + hedges < places) {
      if (open_.compare_exchange_weak(open, open + 1)) return true;
    }
    return false;
  }
  void End() { open_.fetch_sub(1); }

 private:
  std::atomic<int64_t> open_{0};
};

}  // namespace aludel
