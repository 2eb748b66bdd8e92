#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/engine/engine.h"
#include "runtime/model/transformer.h"

namespace aludel {

// Makes log-probabilities of a prompt's tokens out of the logits of the tokens before them, as these are computed. What is
// computed again, after a preemption, is not told again. Owned by the engine thread.
class PromptScorer : public LogitsSink {
 public:
  // Each token comes with the `top` likeliest ones.
  PromptScorer(std::vector<int32_t> prompt, int64_t vocab, int top)
      : prompt_(std::move(prompt)), vocab_(vocab), top_(top) {}

  void OnLogits(int64_t position, absl::Span<const float> logits) override;
  // Tells what is new. Internal where the logits are no numbers.
  absl::Status Tell(SequenceListener& listener);
  // Every token but the first has its score.
  bool done() const { return next_ >= static_cast<int64_t>(prompt_.size()); }

 private:
  const std::vector<int32_t> prompt_;
  const int64_t vocab_;
  const int top_;
  int64_t next_ = 1;  // position of the next token to score
  PromptScores scores_;
  absl::Status status_;
};

}  // namespace aludel
