#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "aludel/v1/handoff.pb.h"
#include "server/gateway/routing/decode_targets.h"

namespace aludel {

// Adds and removes LoRA adapters on every decode server of a model; each waits for the servers, one after the other. What
// a server then serves is known to `targets` before the call returns.
inline constexpr absl::Duration kAdapterCallTimeout = absl::Seconds(10);  // of one server

// OK once all of them have it, also where some had it already; AlreadyExists where all had. Else the error of a server,
// which is named, and those before it have the adapter.
absl::Status LoadAdapter(const DecodeTargets& targets, const std::string& model,
                         const v1::LoadAdapterRequest& request);

// OK once none has it any more; NotFound where none had. An error of one server does not keep others from forgetting it.
absl::Status UnloadAdapter(const DecodeTargets& targets, const std::string& model, const std::string& name);

}  // namespace aludel
