#pragma once

#include <ucs/type/status.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace aludel {

// The one translation of UCX's codes. `what` names the operation: "connect to 10.0.0.3:4711". Everything that
// means "the peer or the way to it is gone" becomes Unavailable, whichever of its many names UCX chose.
absl::Status FromUcs(ucs_status_t status, absl::string_view what);

}  // namespace aludel
