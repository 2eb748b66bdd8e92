#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "aludel/v1/handoff.pb.h"
#include "runtime/codec/codec.h"
#include "runtime/codec/frame.h"
#include "server/handoff/frame_cipher.h"
#include "server/store/agent_prompts.h"

namespace aludel {

// What a run was asked for, checked. Constant but for the cipher.
struct RunSpec {
  std::string request_id;
  std::vector<int32_t> prompt;
  std::string cache_salt;
  bool no_store = false;  // nothing of it is kept for others
  std::optional<WorkflowStep> workflow;
  absl::Duration max_staleness = absl::InfiniteDuration();  // of frames from the cache
  bool frame_times = false;  // the caller wants to know when each frame was sent
  TicketId ticket = {};
  uint64_t epoch = 0;
  std::shared_ptr<const EncoderFactory> codec;
  std::optional<uint64_t> credit;       // at the beginning; none: the receiver has room for everything
  uint64_t receiver_window_bytes = 0;   // with a credit
  std::unique_ptr<FrameCipher> cipher;  // until the sender takes it; null: frames travel in the clear
};

// InvalidArgument for what no server accepts, FailedPrecondition for a format that this one does not have.
// `find_codec` gives null for an unknown name, and a codec of another hash where it has none of this one.
using FindEncoders = absl::FunctionRef<std::shared_ptr<const EncoderFactory>(
    absl::string_view name, absl::string_view artifact_hash)>;
absl::StatusOr<RunSpec> ReadRunRequest(const v1::RunRequest& request, FindEncoders find_codec);

}  // namespace aludel
