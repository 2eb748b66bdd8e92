#include "runtime/engine/sampling/token_emitter.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"

namespace aludel {

absl::StatusOr<std::optional<FinishReason>> TokenEmitter::Emit(Sequence& sequence,
                                                               absl::Span<const float> logits,
                                                               std::optional<int32_t> drawn) {
  const SamplingParams& sampling = sequence.group->sampling;
  absl::Span<const uint64_t> allowed;
  if (sequence.constraint != nullptr) {
    allowed = sequence.constraint->Mask();
    if (std::all_of(allowed.begin(), allowed.end(), [](uint64_t word) { return word == 0; })) {
      return sequence.constraint->status();
    }
  }
  const auto at = static_cast<size_t>(sequence.completion_tokens());
  int32_t token = kNoToken;
  if (at < sampling.forced.size()) {
    token = sampling.forced[at];
  } else if (!drawn.has_value()) {
    token = sequence.sampler.Sample(logits, allowed, &scratch_);
  } else if (*drawn != kNoToken) {
    token = *drawn;
    sequence.sampler.Accept(token);
  }
  if (token == kNoToken) {
    // InvalidArgument, as no other server would find one.
    if (AreLogits(logits)) {
      return absl::InvalidArgumentError(
          "min_tokens, bad_words, allowed_token_ids and the format asked for leave no token to choose");
    }
    return absl::InternalError("no token can be chosen: the model's logits are not finite numbers");
  }
  const bool eos_ends = !sampling.ignore_eos || sequence.constraint != nullptr;
  if (eos_ends && std::find(eos_ids_.begin(), eos_ids_.end(), token) != eos_ids_.end()) {
    return FinishReason::kStop;
  }
  const bool stops = absl::c_linear_search(sampling.stop_ids, token);
  if (stops) sequence.stop_id = token;
  if (stops && !sampling.include_stop) return FinishReason::kStop;
  if (sequence.constraint != nullptr) sequence.constraint->Accept(token);
  sequence.tokens.push_back(token);
  TokenEvent event{.choice = sequence.choice, .id = token};
  event.text = sequence.text.Push(token);
  event.text = sequence.completion_tokens() > sampling.min_tokens
                   ? sequence.stops.Push(event.text)
                   : sequence.stops.Pass(std::move(event.text));
  if (sampling.top_logprobs.has_value()) event.logprobs = Logprobs(logits, token, *sampling.top_logprobs);
  if (!sequence.started) {
    sequence.started = true;
    sequence.clock.Charge(&sequence.times.sample);
    sequence.clock.Stop();
    sequence.times.ttft = sequence.clock.total();
    event.first = true;
  }
  event.step = sequence.last_step;
  event.times = sequence.times;
  event.cached_tokens = sequence.cached_tokens;
  event.fell_back = sequence.fell_back;
  event.fallback_reason = sequence.fallback_reason;
  sequence.listener->OnToken(event);
  if (stops || sequence.stops.matched()) return FinishReason::kStop;
  if (sequence.constraint != nullptr && sequence.constraint->complete()) return FinishReason::kStop;
  if (sequence.completion_tokens() >= sequence.max_completion) return FinishReason::kLength;
  return std::nullopt;
}

}  // namespace aludel
