#include "server/decode/generate_wire.h"

#include <algorithm>

namespace aludel {
namespace {

// As Finished.reason has it.
const char* Name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
  }
  return "unknown";
}

}  // namespace

PlanRequest ReadPlanRequest(const v1::GenerateRequest& request) {
  PlanRequest wanted{.prompt_tokens = request.prompt_size(), .format = request.format()};
  const v1::SamplingParams& sampling = request.sampling();
  wanted.whole = sampling.has_prompt_logprobs();
  if (request.fidelity() == v1::FIDELITY_EXACT) wanted.fidelity = Fidelity::kExact;
  if (request.fidelity() == v1::FIDELITY_HIGH) wanted.fidelity = Fidelity::kHigh;
  if (request.fidelity() == v1::FIDELITY_BALANCED) wanted.fidelity = Fidelity::kBalanced;
  if (request.fidelity() == v1::FIDELITY_FAST) wanted.fidelity = Fidelity::kFast;
  if (wanted.whole || sampling.no_answer()) wanted.fidelity = Fidelity::kExact;
  wanted.targets.assign(request.prefill_targets().begin(), request.prefill_targets().end());
  return wanted;
}

void FillStages(const StageSeconds& stages, v1::Stages* wire) {
  wire->set_queue(stages.queue);
  wire->set_prefill(stages.prefill);
  wire->set_encode(stages.encode);
  wire->set_transfer(stages.transfer);
  wire->set_reconstruct(stages.reconstruct);
  wire->set_recompute(stages.recompute);
  wire->set_first_decode(stages.first_decode);
  wire->set_ttft(stages.ttft);
}

void FillLogprobs(const std::vector<TokenLogprob>& logprobs, size_t shown, v1::Token* wire) {
  for (size_t i = 0; i < std::min(shown, logprobs.size()); ++i) {
    v1::TokenLogprob* entry = wire->add_logprobs();
    entry->set_token(logprobs[i].id);
    entry->set_logprob(logprobs[i].logprob);
  }
}

void FillPromptLogprobs(const PromptScores& scores, v1::PromptLogprobs* wire) {
  wire->set_begin(static_cast<uint32_t>(scores.begin));
  wire->set_top(static_cast<uint32_t>(scores.tokens.empty() ? 0 : scores.tokens[0].logprobs.size() - 1));
  for (const PromptScores::Token& token : scores.tokens) {
    wire->add_ranks(static_cast<uint32_t>(token.rank));
    for (const TokenLogprob& entry : token.logprobs) {
      wire->add_tokens(entry.id);
      wire->add_logprobs(entry.logprob);
    }
  }
}

void FillFinished(const SequenceResult& result, v1::Finished* wire) {
  wire->set_reason(Name(result.reason));
  wire->set_prompt_tokens(static_cast<uint32_t>(result.prompt_tokens));
  wire->set_completion_tokens(static_cast<uint32_t>(result.completion_tokens));
  wire->set_text(result.tail_text);
  wire->set_choice(static_cast<uint32_t>(result.choice));
  if (!result.stop.empty()) wire->set_stop_string(result.stop);
  if (result.stop_id) wire->set_stop_token(*result.stop_id);
}

}  // namespace aludel
