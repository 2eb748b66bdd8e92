#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "aludel/v1/handoff.pb.h"
#include "runtime/engine/engine.h"
#include "server/decode/plan/planner.h"
#include "server/decode/request_timeline.h"

namespace aludel {

// What Decode.Generate's messages say, read and written. Pure.

// A request whose prompt's log-probabilities are asked for, or no answer, is planned as an exact one.
PlanRequest ReadPlanRequest(const v1::GenerateRequest& request);

// Of Started, beside what the timeline knows.
struct StartedFigures {
  double predicted_ttft = 0;         // 0: none was made
  uint64_t payload_bytes = 0;        // received
  uint64_t raw_bytes_per_token = 0;  // of bf16 K and V
  int64_t cached_tokens = 0;
  int64_t stored_tokens = 0;
  std::string fallback_reason = {};  // "": it did not fall back
};
v1::GenerateEvent StartedEvent(const RequestTimeline::Started& started, const StartedFigures& figures);

// With the first `shown_logprobs` of its log probabilities.
v1::GenerateEvent AnswerEvent(const TokenEvent& token, size_t shown_logprobs);
v1::GenerateEvent AnswerEvent(const PromptScores& scores);
v1::GenerateEvent AnswerEvent(const SequenceResult& result, int64_t stored_tokens);

}  // namespace aludel
