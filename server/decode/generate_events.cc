#include "server/decode/generate_events.h"

#include <algorithm>

#include "server/rpc/cache_events/prompt_keys.h"

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

// Of the shortest beginning that gateways route by, too.
uint64_t BeginningKey(const v1::GenerateRequest& request) {
  PromptHash hash(SaltSeed(request.cache_salt()));
  for (int i = 0; i < std::min<int>(request.prompt_size(), kPrefixStep); ++i) hash.Add(request.prompt(i));
  return hash.key();
}

}  // namespace

PlanRequest ReadPlanRequest(const v1::GenerateRequest& request) {
  PlanRequest wanted{.prompt_tokens = request.prompt_size(), .format = request.format()};
  const v1::SamplingParams& sampling = request.sampling();
  wanted.choices = std::max<uint32_t>(sampling.choices(), 1);
  wanted.whole = sampling.has_prompt_logprobs();
  if (request.fidelity() == v1::FIDELITY_EXACT) wanted.fidelity = Fidelity::kExact;
  if (request.fidelity() == v1::FIDELITY_HIGH) wanted.fidelity = Fidelity::kHigh;
  if (request.fidelity() == v1::FIDELITY_BALANCED) wanted.fidelity = Fidelity::kBalanced;
  if (request.fidelity() == v1::FIDELITY_FAST) wanted.fidelity = Fidelity::kFast;
  if (wanted.whole || sampling.no_answer()) wanted.fidelity = Fidelity::kExact;
  wanted.takes_stored =
      !wanted.whole && !request.has_max_staleness_ms();  // the age of codes is not known here
  wanted.key = BeginningKey(request);
  wanted.targets.assign(request.prefill_targets().begin(), request.prefill_targets().end());
  return wanted;
}

v1::GenerateEvent StartedEvent(const RequestTimeline::Started& started, const StartedFigures& figures) {
  v1::GenerateEvent event;
  v1::Started* out = event.mutable_started();
  out->set_plan(started.labels.plan);
  out->set_format(started.labels.format);
  out->set_payload_bytes(figures.payload_bytes);
  out->set_predicted_ttft(figures.predicted_ttft);
  out->set_handed_over_tokens(static_cast<uint32_t>(started.handed_over_tokens));
  out->set_raw_bytes(figures.raw_bytes_per_token * started.handed_over_tokens);
  out->set_cached_tokens(static_cast<uint32_t>(figures.cached_tokens));
  out->set_stored_tokens(static_cast<uint32_t>(figures.stored_tokens));
  if (!figures.fallback_reason.empty()) out->set_fallback_reason(figures.fallback_reason);
  FillStages(started.stages, out->mutable_stages());
  return event;
}

v1::GenerateEvent AnswerEvent(const TokenEvent& token, size_t shown_logprobs) {
  v1::GenerateEvent event;
  v1::Token* out = event.mutable_token();
  out->set_id(token.id);
  out->set_text(token.text);
  out->set_choice(static_cast<uint32_t>(token.choice));
  for (size_t i = 0; i < std::min(shown_logprobs, token.logprobs.size()); ++i) {
    v1::TokenLogprob* logprob = out->add_logprobs();
    logprob->set_token(token.logprobs[i].id);
    logprob->set_logprob(token.logprobs[i].logprob);
  }
  return event;
}

v1::GenerateEvent AnswerEvent(const PromptScores& scores) {
  v1::GenerateEvent event;
  v1::PromptLogprobs* out = event.mutable_prompt_logprobs();
  out->set_begin(static_cast<uint32_t>(scores.begin));
  out->set_top(static_cast<uint32_t>(scores.tokens.empty() ? 0 : scores.tokens[0].logprobs.size() - 1));
  for (const PromptScores::Token& token : scores.tokens) {
    out->add_ranks(static_cast<uint32_t>(token.rank));
    for (const TokenLogprob& entry : token.logprobs) {
      out->add_tokens(entry.id);
      out->add_logprobs(entry.logprob);
    }
  }
  return event;
}

v1::GenerateEvent AnswerEvent(const SequenceResult& result, int64_t stored_tokens) {
  v1::GenerateEvent event;
  v1::Finished* out = event.mutable_finished();
  out->set_reason(Name(result.reason));
  out->set_prompt_tokens(static_cast<uint32_t>(result.prompt_tokens));
  out->set_completion_tokens(static_cast<uint32_t>(result.completion_tokens));
  out->set_text(result.tail_text);
  out->set_choice(static_cast<uint32_t>(result.choice));
  out->set_stored_tokens(static_cast<uint32_t>(stored_tokens));
  if (!result.stop.empty()) out->set_stop_string(result.stop);
  if (result.stop_id) out->set_stop_token(*result.stop_id);
  return event;
}

}  // namespace aludel
