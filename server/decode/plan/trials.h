#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "server/decode/plan/plan.h"

namespace aludel {

// What trying plans may take of others. Counts the requests that try one with a hedge behind it, from the plan to the
// first token: the hedge begins only when the handoff is late, and must find a place then. And keeps an account of the
// seconds that trials may cost: kShare of the time to first tokens, so that a server with few requests, each of which
// would find something that was not tried for long, spends no more on it than one with many, also after it had many. Thread-safe.
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

  // Of what requests that try nothing wait for their first tokens, what trials may add.
  static constexpr double kShare = 0.02;

  // What is kept for later is what so many requests earn: a try costs less than a request takes, so that it is worth a
  // few, however busy the server was before.
  static constexpr double kKeptRequests = 100;

  // The plan is carried out.
  void Account(const Plan& plan) {
    if (plan.reason == PlanReason::kExplore) Spend(plan.try_seconds);
    if (plan.reason == PlanReason::kFastest) Earn(plan.predicted_ttft.value_or(0));
  }
  // A request that tries nothing is expected to have its first token after `seconds`. Where requests have become shorter
  // what is there is more than they may keep, and goes as it came.
  void Earn(double seconds) {
    const double earned = kShare * seconds;
    const double most = kKeptRequests * earned;
    double had = seconds_.load();
    while (!seconds_.compare_exchange_weak(
        had, had + earned <= most ? had + earned : std::max(most, had - earned))) {
    }
  }
  // One that does is expected to have it `seconds` later than it might.
  void Spend(double seconds) { seconds_.fetch_sub(seconds); }
  // Below 0 where trials that ran at the same time have spent it twice.
  double seconds() const { return seconds_.load(); }

 private:
  std::atomic<int64_t> open_{0};
  std::atomic<double> seconds_{0};
};

}  // namespace aludel
