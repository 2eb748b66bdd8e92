#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "aludel/v1/handoff.pb.h"

namespace aludel {

// Of a workflow's id, and of an agent's name; and how many agents may be named as next.
inline constexpr size_t kMaxWorkflowNameBytes = 64;
inline constexpr int kMaxNextAgents = 16;

// Ok, or InvalidArgument, which names the field, what was found and what is allowed, and never repeats the value.
absl::Status CheckWorkflow(const v1::Workflow& workflow);

}  // namespace aludel
