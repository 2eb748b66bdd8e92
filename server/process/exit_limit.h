#pragma once

#include "absl/time/time.h"

namespace aludel {

// Ends this process with exit code 1 if it is still there after `limit`, on threads of its own that need no other: a
// supervisor can restart a dead process but not one that waits for a wedged thread. A second later where the log takes
// no line. For the end of a server, after the signal to stop; what waits inside this limit needs none of its own.
void ExitWithin(absl::Duration limit);

// What a stop takes beyond the times that its operator sets: calls that were canceled and do not end, transfers, the
// engine's last step.
inline constexpr absl::Duration kStopSlack = absl::Seconds(30);

}  // namespace aludel
