#pragma once

#include <vector>

#include "aludel/v1/handoff.pb.h"
#include "runtime/engine/engine.h"
#include "server/decode/plan/planner.h"
#include "server/observe/request_metrics.h"

namespace aludel {

// Between Decode.Generate's messages and what the engine and the planner know.

// A request whose prompt's log-probabilities are asked for, or no answer, is planned as an exact one.
PlanRequest ReadPlanRequest(const v1::GenerateRequest& request);
void FillStages(const StageSeconds& stages, v1::Stages* wire);
// At most `shown` entries.
void FillLogprobs(const std::vector<TokenLogprob>& logprobs, size_t shown, v1::Token* wire);
void FillPromptLogprobs(const PromptScores& scores, v1::PromptLogprobs* wire);
void FillFinished(const SequenceResult& result, v1::Finished* wire);

}  // namespace aludel
