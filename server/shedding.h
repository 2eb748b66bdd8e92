#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace aludel {

// Deadline-aware shedding: ResourceExhausted, with both figures, where the first token of a request is
// predicted for later than its deadline. To work on it would cost the others their deadlines and save nobody.
// Both times are MonotonicNow()'s. `busy`: others are being served or wait. An idle server refuses nobody, so
// that a prediction that has become wrong is corrected by what then happens; nothing predicted, nothing shed.
absl::Status ShedIfHopeless(std::optional<double> predicted_seconds, bool busy, absl::Time now,
                            absl::Time deadline);

}  // namespace aludel
