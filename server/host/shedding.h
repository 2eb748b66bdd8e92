#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace aludel {

// Deadline-aware shedding: ResourceExhausted, with both figures, where the first token of a request is
// predicted for later than its deadline. Working on it would cost other requests their deadlines and not meet
// this one's. Both times are MonotonicNow()'s. `busy`: other requests are being served or wait. An idle
// server refuses none, so that a wrong prediction is corrected by what then happens. Without a prediction
// nothing is shed.
absl::Status ShedIfHopeless(std::optional<double> predicted_seconds, bool busy, absl::Time now,
                            absl::Time deadline);

}  // namespace aludel
