#include "runtime/engine/sampling/prompt_scorer.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "kernels/check.h"

namespace aludel {

void PromptScorer::OnLogits(int64_t position, absl::Span<const float> logits) {
  const auto rows = static_cast<int64_t>(logits.size()) / vocab_;
  for (int64_t row = 0; row < rows && status_.ok() && !done(); ++row) {
    const int64_t scored = position + row + 1;
    if (scored < next_) continue;
    ALUDEL_CHECK(scored == next_);  // a sequence that is scored skips no position
    const absl::Span<const float> given = logits.subspan(row * vocab_, vocab_);
    if (!AreLogits(given)) {
      status_ = absl::InternalError(
          absl::StrFormat("the model's logits behind prompt token %d are not finite numbers", scored - 1));
      return;
    }
    const int32_t token = prompt_[scored];
    const auto likelier =
        std::count_if(given.begin(), given.end(), [&](float logit) { return logit > given[token]; });
    scores_.tokens.push_back({Logprobs(given, token, top_), 1 + static_cast<int32_t>(likelier)});
    ++next_;
  }
}

absl::Status PromptScorer::Tell(SequenceListener& listener) {
  if (!status_.ok()) return status_;
  if (scores_.tokens.empty()) return absl::OkStatus();
  scores_.begin = next_ - static_cast<int64_t>(scores_.tokens.size());
  listener.OnPromptScores(std::exchange(scores_, {}));
  return absl::OkStatus();
}

}  // namespace aludel
