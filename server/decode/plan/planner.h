#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "server/config/decode_options.h"
#include "server/decode/plan/plan.h"

namespace aludel {

// How a prompt gets its cache: computed here, or handed over by a prefill server. A pure function of what is
// known at admission; what it decides is exported with its reason.

struct PlanRequest {
  int64_t prompt_tokens = 0;
  std::optional<Fidelity> fidelity;  // unset: the server's default
  std::string format;                // "": the server's choice
  std::vector<std::string> targets;  // preferred prefill servers, best first; empty: the configured order
};

// What the planner knows of one prefill server.
struct PlanTarget {
  std::string name;
  bool ready = false;
  std::vector<std::string> formats;  // shared with this server, in this server's order
  int64_t waiting_tokens = 0;        // as it reported last
  double tokens_per_second = 0;
};

// Seconds to the first token: of local prefill (no target), or of a handoff. Nothing where it was
// never tried.
using PredictTtft =
    std::function<std::optional<double>(std::optional<size_t> target, const std::string& format)>;

// InvalidArgument for a format that is not in `formats` (this server's), or one forced together with exact
// fidelity. A forced format overrides the length threshold; where no server can deliver it the plan is local.
// Never a format that loses more than the fidelity allows. Under options.fastest the plan that `predict`
// expects soonest; a plan without a prediction is tried first.
absl::StatusOr<Plan> MakePlan(const PlannerOptions& options, absl::Span<const std::string> formats,
                              absl::Span<const PlanTarget> targets, const PlanRequest& request,
                              const PredictTtft& predict = nullptr);

}  // namespace aludel
