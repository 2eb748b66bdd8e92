#pragma once

#include <optional>
#include <string>
#include <vector>

#include "aludel/v1/handoff.pb.h"
#include "runtime/text/generation_config.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "server/gateway/openai/fields/json_fields.h"

namespace aludel {

// OpenAI's sampling fields and those that vLLM's users add (top_k, min_p, repetition_penalty, ignore_eos,
// min_tokens, stop_token_ids, allowed_token_ids, include_stop_str_in_output). A fault is left in `fields`. What has a
// default of the model's own stays absent where the request leaves it out.
void ParseSampling(JsonFields& fields, v1::SamplingParams* sampling);
// What ends the answer, by the name that the API has for it: a string, or a list of some.
void ParseStop(JsonFields& fields, absl::string_view name, v1::SamplingParams* sampling);
// "bad_words", and what they are in tokens: as the beginning of a text and as its next word, as vLLM does.
void ParseBadWords(JsonFields& fields, std::vector<std::string>* words);
std::optional<ApiError> SpellBadWords(const Tokenizer& tokenizer, const std::vector<std::string>& words,
                                      v1::SamplingParams* sampling);
// Fills in what is absent: the model's defaults, then OpenAI's.
void FillSampling(const GenerationConfig& defaults, v1::SamplingParams* sampling);
// Of a request whose lengths are filled in.
std::optional<ApiError> CheckMinTokens(const v1::SamplingParams& sampling);
// The two endpoints ask for log-probabilities in different ways.
void ParseChatLogprobs(JsonFields& fields, v1::SamplingParams* sampling);
void ParsePlainLogprobs(JsonFields& fields, v1::SamplingParams* sampling);

}  // namespace aludel
