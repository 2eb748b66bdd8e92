#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/config.h"

namespace aludel {

// How a prompt gets its cache: computed here, or handed over by a prefill server. A pure function of what is
// known at admission; what it decides is exported with its reason.

struct PlanRequest {
  int64_t prompt_tokens = 0;
  std::optional<Fidelity> fidelity;  // unset: the server's default
  std::string format;                // "": the server's choice
  std::vector<std::string> targets;  // preferred prefill servers, best first; empty: the configured order
};

// What is known of one prefill server.
struct PlanTarget {
  std::string name;
  bool ready = false;
  std::vector<std::string> formats;  // shared with this server, in this server's order
};

struct Plan {
  bool remote = false;
  size_t target = 0;  // index into the targets passed in
  std::string format;
  int64_t handed_over_tokens = 0;
  // Few values, for the metric: fidelity, short_prompt, no_target, no_format, coded, forced.
  std::string reason;
};

// InvalidArgument for a format that is not in `formats` (this server's), or one forced together with exact
// fidelity. A forced format overrides the length threshold; where nobody can deliver it the plan is local.
absl::StatusOr<Plan> MakePlan(const PlannerOptions& options, absl::Span<const std::string> formats,
                              absl::Span<const PlanTarget> targets, const PlanRequest& request);

}  // namespace aludel
