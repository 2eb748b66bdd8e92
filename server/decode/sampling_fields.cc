#include "server/decode/sampling_fields.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int kMaxStopStrings = 16;  // the gateway takes OpenAI's 4
constexpr size_t kMaxStopBytes = 1024;
constexpr int kMaxBiases = 1024;
constexpr uint32_t kMaxTopLogprobs = 20;
constexpr uint32_t kMaxChoices = 128;

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
  params.ignore_eos = wire.ignore_eos();
  params.choices = std::max<int>(1, static_cast<int>(wire.choices()));
  if (wire.has_top_logprobs()) params.top_logprobs = static_cast<int>(wire.top_logprobs());
  ALUDEL_RETURN_IF_ERROR(ReadLists(wire, &params));
  return params;
}

}  // namespace aludel
