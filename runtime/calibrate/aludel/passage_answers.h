#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/calibrate/aludel/gradient/cache_gradient.h"
#include "runtime/calibrate/aludel/passage.h"
#include "runtime/calibrate/aludel/state_file.h"
#include "runtime/calibrate/fit/statistics.h"

namespace aludel {

// What a consumer says on its own cache to every prompt of a passage: what tuning holds decoders to.
struct PassageAnswers {
  // Of every branch what is fed: the prompt's last token and the greedy answer without its last; in front of them what
  // RecomputeTails adds.
  std::vector<std::vector<int32_t>> tails;
  // After each token of the tails, one branch behind the other: ids and their log-probabilities. Those too unlikely
  // to matter are left out (kLeastLikely).
  std::vector<std::vector<std::pair<int32_t, float>>> targets;
  // Of every branch, tokens in front of the prompt's last that are fed, too, and have no targets; empty: none.
  std::vector<int64_t> recomputed;

  // Feeds the last `tokens` before each prompt's last one, too, which the consumer recomputes
  // (CodecSpec::recomputed_tail_tokens), as far as they are the branch's own. Call it once.
  void RecomputeTails(const Passage& passage, int64_t tokens);
  // How many tokens have targets.
  int64_t answered() const;
  // The tails as one pass takes them, and where they hang.
  std::vector<int32_t> Tail() const;
  std::vector<TailBranch> Branches(const Passage& passage) const;
  // [tail, vocab], minus infinity where a token was left out.
  std::vector<float> LogProbabilities(size_t vocab) const;
};

// A vocabulary of 10^5 of these has a probability of a ten-thousandth.
inline constexpr float kLeastLikely = 1e-9f;

// Rows of a passage in the consumer's own cache.
std::vector<float> ReadPassage(const StateFile& own, int64_t first_row, int64_t tokens, int64_t columns);

// The answers to passages that lie one behind the other in `own`, from a file of `directory` where they are
// there. `model_key` names the model and its arithmetic.
absl::StatusOr<std::vector<PassageAnswers>> OpenPassageAnswers(
    const std::string& directory, const std::string& model_key, CacheGradient& consumer, const StateFile& own,
    absl::Span<const Passage> passages, int max_answer_tokens, const CalibrationProgress& progress);

}  // namespace aludel
