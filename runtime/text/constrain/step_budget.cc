#include "runtime/text/constrain/step_budget.h"

#include "absl/strings/str_cat.h"
#include "runtime/files/stop_scope.h"

namespace aludel {
namespace {

constexpr int64_t kStepsPerStopCheck = 4096;

}  // namespace

absl::Status StepBudget::Spend(int64_t steps) {
  left_ -= steps;
  if (left_ < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("takes more than ", limit_, " steps to compile"));
  }
  if (spent() < next_stop_check_) return absl::OkStatus();
  next_stop_check_ = spent() + kStepsPerStopCheck;
  return CheckStop();
}

}  // namespace aludel
