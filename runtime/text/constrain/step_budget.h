#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace aludel {

inline constexpr int64_t kMaxCompileSteps = 1 << 20;

// What one compilation may still do, in steps of some ten nanoseconds. Everything whose cost a schema's
// author chooses spends from it, so that a few kilobytes never cost more than a tenth of a second.
class StepBudget {
 public:
  explicit StepBudget(int64_t steps) : limit_(steps), left_(steps) {}

  // ResourceExhausted once the steps are spent; Cancelled where CheckStop() says so.
  absl::Status Spend(int64_t steps);
  int64_t limit() const { return limit_; }
  int64_t spent() const { return limit_ - left_; }

 private:
  const int64_t limit_;
  int64_t left_;
  int64_t next_stop_check_ = 0;  // in steps spent
};

}  // namespace aludel
