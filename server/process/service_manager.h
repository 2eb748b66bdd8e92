#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace aludel {

// Tells the service manager that started this process (systemd's Type=notify) how it is doing: one datagram to the
// Unix socket that $NOTIFY_SOCKET names. Ok where the variable is missing. `state` is as in
// sd_notify(3): "READY=1", "STOPPING=1", "WATCHDOG=1". Never blocks: a service manager that does not read is
// Unavailable, and so is one that is gone. Thread-safe.
absl::Status NotifyServiceManager(absl::string_view state);

}  // namespace aludel
