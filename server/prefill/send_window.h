#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "server/host/model_host.h"
#include "server/prefill/run_spec.h"

namespace aludel {

// How much send memory a run gets, and what that means for its steps.
struct SendWindow {
  size_t bytes = 0;
  bool limits = false;      // there may be less room than frames
  int64_t step_tokens = 0;  // of one step: what the window has room for
};

// `handoff_window_bytes` is the server's setting, `arena_bytes` all its send memory. FailedPrecondition where the receiver's
// window is too small for a step, ResourceExhausted where the arena is too small for the handoff.
absl::StatusOr<SendWindow> ChooseSendWindow(const RunSpec& run, const ModelHost& model,
                                            size_t handoff_window_bytes, size_t arena_bytes);

}  // namespace aludel
