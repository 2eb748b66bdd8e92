#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "aludel/v1/handoff.pb.h"
#include "runtime/engine/engine.h"
#include "server/decode/decode_context.h"
#include "server/decode/handoff/handoff_spec.h"
#include "server/decode/plan/plan.h"
#include "server/decode/request_planner.h"
#include "server/decode/shadow_checker.h"
#include "server/handoff/frame_arena.h"

namespace aludel {

// What one request comes to before the engine has it.
struct GenerateSetup {
  GenerateSpec spec;
  Plan plan;           // as it is carried out: not always as it was chosen
  FrameExtent extent;  // for the frames of a remote or stored plan
  std::optional<ShadowAnswer> shadow;
  size_t shown_logprobs = 0;  // entries of a token's that the client asked for

  // Tokens that come as frames.
  int64_t framed_tokens() const {
    return plan.framed() ? plan.handed_over_tokens - spec.codec->spec().recomputed_head_tokens : 0;
  }
};

// Carries `chosen` out as far as memory allows: what earlier handoffs have left here is used where that is sooner, and
// the prompt is prefilled here where its frames have no room. InvalidArgument for sampling that makes no sense,
// ResourceExhausted where the first token cannot come before `deadline` (MonotonicNow()). `cache_salt`: of what is cached
// here, the request's since the last reset. `adapter`: what the plan was made for; the engine holds it.
absl::StatusOr<GenerateSetup> SetUpGenerate(const DecodeContext& context, const RequestPlanner& planner,
                                            const v1::GenerateRequest& request, const std::string& cache_salt,
                                            const Plan& chosen, const RequestAdapter& adapter,
                                            absl::Time deadline, std::shared_ptr<TokenAutomaton> constraint);

// Of a plan with frames. `traceparent`: "" for none.
HandoffSpec MakeHandoffSpec(const DecodeContext& context, const v1::GenerateRequest& request,
                            const PlanRequest& wanted, const GenerateSetup& setup, absl::Time deadline,
                            std::string traceparent);

}  // namespace aludel
