#include "server/decode/sampling_fields.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int kMaxStopStrings = 16;
constexpr size_t kMaxStopBytes = 1024;
constexpr int kMaxBiases = 1024;
constexpr uint32_t kMaxTopLogprobs = 20;
constexpr uint32_t kMaxChoices = 128;
constexpr int kMaxStopIds = 128;
constexpr int kMaxBadWords = 256;
constexpr int kMaxBadWordTokens = 64;
constexpr int kMaxAllowedIds = 65536;

absl::Status CheckRange(absl::string_view field, double value, double min, double max) {
  // A NaN fails every comparison, so the rule states what is allowed.
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("sampling.", field, ": found ", value, ", want ", min, " to ", max));
}

absl::Status ReadLists(const v1::SamplingParams& wire, SamplingParams* params) {
  ALUDEL_RETURN_IF_ERROR(CheckRange("stop: strings", wire.stop_size(), 0, kMaxStopStrings));
  for (const std::string& stop : wire.stop()) {
    ALUDEL_RETURN_IF_ERROR(CheckRange("stop: bytes", static_cast<double>(stop.size()), 1, kMaxStopBytes));
    params->stop.push_back(stop);
  }
  ALUDEL_RETURN_IF_ERROR(CheckRange("logit_bias: tokens", wire.logit_bias_size(), 0, kMaxBiases));
  for (const v1::LogitBias& bias : wire.logit_bias()) {
    ALUDEL_RETURN_IF_ERROR(CheckRange("logit_bias.bias", bias.bias(), -100, 100));
    params->logit_bias.push_back({bias.token(), bias.bias()});
  }
  ALUDEL_RETURN_IF_ERROR(CheckRange("stop_token_ids: tokens", wire.stop_token_ids_size(), 0, kMaxStopIds));
  params->stop_ids.assign(wire.stop_token_ids().begin(), wire.stop_token_ids().end());
  ALUDEL_RETURN_IF_ERROR(CheckRange("bad_words: words", wire.bad_words_size(), 0, kMaxBadWords));
  for (const v1::TokenRun& word : wire.bad_words()) {
    ALUDEL_RETURN_IF_ERROR(CheckRange("bad_words: tokens", word.ids_size(), 1, kMaxBadWordTokens));
    params->bad_words.emplace_back(word.ids().begin(), word.ids().end());
  }
  ALUDEL_RETURN_IF_ERROR(
      CheckRange("allowed_token_ids: tokens", wire.allowed_token_ids_size(), 0, kMaxAllowedIds));
  params->allowed_ids.assign(wire.allowed_token_ids().begin(), wire.allowed_token_ids().end());
  if (wire.has_thinking()) {
    const v1::ThinkingBudget& budget = wire.thinking();
    params->thinking = {.tokens = budget.tokens(), .end = budget.end_token()};
    if (budget.has_begin_token()) {
      ALUDEL_RETURN_IF_ERROR(CheckRange("thinking.begin_token", budget.begin_token(), 0, INT32_MAX));
      params->thinking->begin = budget.begin_token();
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SamplingParams> ReadSampling(const v1::SamplingParams& wire) {
  ALUDEL_RETURN_IF_ERROR(CheckRange("temperature", wire.temperature(), 0, 100));
  ALUDEL_RETURN_IF_ERROR(CheckRange("top_p", wire.top_p(), 0, 1));
  ALUDEL_RETURN_IF_ERROR(CheckRange("min_p", wire.min_p(), 0, 1));
  ALUDEL_RETURN_IF_ERROR(CheckRange("repetition_penalty", wire.repetition_penalty(), 0, 10));
  ALUDEL_RETURN_IF_ERROR(CheckRange("presence_penalty", wire.presence_penalty(), -2, 2));
  ALUDEL_RETURN_IF_ERROR(CheckRange("frequency_penalty", wire.frequency_penalty(), -2, 2));
  ALUDEL_RETURN_IF_ERROR(CheckRange("top_logprobs", wire.top_logprobs(), 0, kMaxTopLogprobs));
  ALUDEL_RETURN_IF_ERROR(CheckRange("prompt_logprobs", wire.prompt_logprobs(), 0, kMaxTopLogprobs));
  ALUDEL_RETURN_IF_ERROR(CheckRange("choices", wire.choices(), 0, kMaxChoices));
  SamplingParams params;
  params.temperature = wire.temperature();
  params.top_k = static_cast<int>(std::min<uint32_t>(wire.top_k(), 1u << 30));
  params.top_p = wire.top_p() == 0 ? 1.0 : wire.top_p();
  params.min_p = wire.min_p();
  params.repetition_penalty = wire.repetition_penalty() == 0 ? 1.0 : wire.repetition_penalty();
  params.presence_penalty = wire.presence_penalty();
  params.frequency_penalty = wire.frequency_penalty();
  if (wire.has_seed()) params.seed = wire.seed();
  params.max_tokens = wire.max_tokens();
  params.min_tokens = wire.min_tokens();
  if (params.max_tokens > 0 && params.min_tokens > params.max_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("sampling.min_tokens: found ", params.min_tokens,
                                                   ", want at most max_tokens, ", params.max_tokens));
  }
  params.include_stop = wire.include_stop();
  params.ignore_eos = wire.ignore_eos();
  params.choices = std::max<int>(1, static_cast<int>(wire.choices()));
  if (wire.has_top_logprobs()) params.top_logprobs = static_cast<int>(wire.top_logprobs());
  if (wire.has_prompt_logprobs()) params.prompt_logprobs = static_cast<int>(wire.prompt_logprobs());
  params.no_answer = wire.no_answer();
  if (params.no_answer && params.max_tokens > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.max_tokens: found ", params.max_tokens, ", want 0 beside no_answer"));
  }
  ALUDEL_RETURN_IF_ERROR(ReadLists(wire, &params));
  return params;
}

}  // namespace aludel
