#include "server/prefill/send_window.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"

namespace aludel {

absl::StatusOr<SendWindow> ChooseSendWindow(const RunSpec& run, const ModelHost& model,
                                            size_t handoff_window_bytes, size_t arena_bytes) {
  const auto tokens = static_cast<int64_t>(run.prompt.size());
  const CodecSpec& codec = run.codec->spec();
  // Those of the store, too, which are of the engine's own steps.
  const size_t frame = model.StepFrameBound(codec);
  SendWindow window = {.bytes = model.HandoffWindow(codec, tokens, handoff_window_bytes),
                       .step_tokens = model.engine().options().max_num_batched_tokens};
  window.limits = window.bytes < model.HandoffBytesBound(codec, tokens);
  if (run.credit) {
    window.limits = true;
    // The receiver's own steps may be smaller than ours (a CPU's beside a GPU's): then ours are as small for its runs.
    const std::optional<int64_t> fitting = model.StepTokens(codec, *run.credit);
    window.step_tokens = fitting.value_or(window.step_tokens);
    const size_t step = model.StepBytesBound(codec, window.step_tokens);
    if (!fitting || run.receiver_window_bytes < *run.credit + frame) {
      return absl::FailedPreconditionError(absl::StrCat(
          "ticket: a window of ", run.receiver_window_bytes, " bytes and a credit of ", *run.credit,
          ", a step of this server may need ", step, " in frames of up to ", frame));
    }
    window.bytes = std::max(window.bytes, step + frame);
  }
  if (window.bytes > arena_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("send_arena_bytes is ", arena_bytes, ", this handoff needs ", window.bytes));
  }
  return window;
}

}  // namespace aludel
