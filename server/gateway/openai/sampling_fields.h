#pragma once

#include "aludel/v1/handoff.pb.h"
#include "runtime/text/generation_config.h"
#include "server/gateway/openai/json_fields.h"

namespace aludel {

// OpenAI's sampling fields and those that vLLM's users add (top_k, min_p, repetition_penalty, ignore_eos). A
// fault is left in `fields`. What has a default of the model's own stays absent where the request leaves
// it out.
void ParseSampling(JsonFields& fields, v1::SamplingParams* sampling);
// Fills in what is absent: the model's defaults, then OpenAI's.
void FillSampling(const GenerationConfig& defaults, v1::SamplingParams* sampling);
// The two endpoints ask for log-probabilities in different ways.
void ParseChatLogprobs(JsonFields& fields, v1::SamplingParams* sampling);
void ParsePlainLogprobs(JsonFields& fields, v1::SamplingParams* sampling);

}  // namespace aludel
