#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/kv/block_pool.h"
#include "runtime/model/transformer.h"

namespace aludel {

// How far a reconstructed cache moves the consumer: its next-token distributions on that cache against those
// on its own, teacher-forced over the answer that it gives on its own (method: KL(oracle || format),
// total variation).

// Greedy tokens from a cache that holds all of a prompt but its last token, and the logits that chose each.
// The end token is the last one where the model came to it.
struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logits;  // [tokens, vocab]
};

absl::StatusOr<Answer> AnswerGreedily(Transformer& model, BlockPool& pool, absl::Span<const BlockId> blocks,
                                      absl::Span<const int32_t> prompt, int max_tokens);

// Has the model compute tokens [begin, end) of `ids` into `blocks`, which hold those before, and tells `each` the logits
// behind every one of them, in order.
absl::Status ForwardEach(Transformer& model, BlockPool& pool, absl::Span<const BlockId> blocks,
                         absl::Span<const int32_t> ids, int64_t begin, int64_t end,
                         absl::FunctionRef<void(int64_t token, absl::Span<const float> logits)> each);

// One entry per token of the oracle's answer.
struct Divergence {
  std::vector<double> kl;  // nats
  std::vector<double> tv;
  std::vector<int32_t> choices;  // the greedy choice on the cache under test
};

// `blocks` hold all but the last token of `prompt` and have room for the answer. `observer`, which may be
// null, sees every row of the teacher-forced pass as a slice of its own.
absl::StatusOr<Divergence> CompareWithOracle(Transformer& model, BlockPool& pool,
                                             absl::Span<const BlockId> blocks,
                                             absl::Span<const int32_t> prompt, const Answer& oracle,
                                             LayerObserver* observer = nullptr);

// The greedy tokens of a cache that was compared with the oracle, as AnswerGreedily gives them: only what
// follows the first other choice is computed.
absl::StatusOr<std::vector<int32_t>> AnswerAfterComparison(Transformer& model, BlockPool& pool,
                                                           absl::Span<const BlockId> blocks,
                                                           absl::Span<const int32_t> prompt,
                                                           const Answer& oracle, const Divergence& divergence,
                                                           int max_tokens);

// KL(p || q) and total variation of softmax(p) and softmax(q), in double.
struct PairDivergence {
  double kl = 0;
  double tv = 0;
};
PairDivergence Diverge(absl::Span<const float> p_logits, absl::Span<const float> q_logits);

// -log softmax(logits)[id], in double.
double NegativeLogProbability(absl::Span<const float> logits, int32_t id);

}  // namespace aludel
