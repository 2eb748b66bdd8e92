#pragma once

#include <algorithm>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/config/decode_options.h"
#include "server/decode/plan/plan.h"

namespace aludel {

// How long a handoff is waited for before the prompt is also prefilled here.
struct Patience {
  absl::Duration whole = absl::InfiniteDuration();    // since the handoff began
  absl::Duration silence = absl::InfiniteDuration();  // since the last frame, while more are to come

  // `last_frame` is InfiniteFuture() where none has come, or none is to come.
  absl::Time LateAt(absl::Time begin, absl::Time last_frame) const {
    return std::min(begin + whole, last_frame + silence);
  }
};

// When the next prefill server is asked in place of the first.
struct MoveRule {
  absl::Duration after = absl::InfiniteDuration();  // since the handoff began
  absl::Duration silence;                           // since the last frame, once they come

  bool ever() const { return after < absl::InfiniteDuration(); }
  // `last_frame` is InfiniteFuture() where none has come. While frames come the first server has until the patience
  // is over.
  absl::Time MoveAt(absl::Time begin, absl::Time last_frame, const Patience& patience) const {
    if (last_frame == absl::InfiniteFuture()) return begin + after;
    return std::max(begin + after, std::min(last_frame + silence, begin + patience.whole));
  }
};

// How much later than predicted is late.
inline absl::Duration LateBy(double predicted_seconds, const HedgeOptions& options) {
  return std::max(options.late_share * absl::Seconds(predicted_seconds), options.late_min);
}

// Infinite for a format that the request names, which would rather wait, and for a plan that nothing is known
// of: unless it is tried as an alternative to a known one, which sets hedge_after.
inline Patience PatienceWith(const Plan& plan, const HedgeOptions& options) {
  if (options.max_running == 0 || plan.reason == PlanReason::kForced) return {};
  if (plan.hedge_after) return {.whole = absl::Seconds(*plan.hedge_after)};
  if (!plan.predicted_ttft) return {};
  const absl::Duration late = LateBy(*plan.predicted_ttft, options);
  return {absl::Seconds(*plan.predicted_ttft) + late, late};
}

// Whether a handoff that ended with `code` after `attempts` was given up for local prefill that was sooner, which the
// planner learns from. Where nothing is chosen by prediction, patience must not grow with every late handoff; without
// hedges nothing overtakes, and a deadline that passed says nothing of how soon the plan would have been.
inline bool WasOvertaken(absl::StatusCode code, int attempts, bool by_prediction,
                         const HedgeOptions& options) {
  return by_prediction && options.max_running > 0 && code == absl::StatusCode::kDeadlineExceeded &&
         attempts == 1;
}

}  // namespace aludel
