#include "runtime/codec/oracle.h"

#include <algorithm>
#include <cmath>

#include "kernels/check.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// Log of the softmax's denominator.
double LogSumExp(absl::Span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  return top + std::log(sum);
}

bool IsEnd(const ModelConfig& config, int32_t id) {
  return std::find(config.eos_ids.begin(), config.eos_ids.end(), id) != config.eos_ids.end();
}

}  // namespace

PairDivergence Diverge(absl::Span<const float> p_logits, absl::Span<const float> q_logits) {
  ALUDEL_CHECK(p_logits.size() == q_logits.size() && !p_logits.empty());
  const double p_norm = LogSumExp(p_logits);
  const double q_norm = LogSumExp(q_logits);
  PairDivergence result;
  for (size_t i = 0; i < p_logits.size(); ++i) {
    const double log_p = p_logits[i] - p_norm;
    const double log_q = q_logits[i] - q_norm;
    const double p = std::exp(log_p);
    result.kl += p * (log_p - log_q);
    result.tv += 0.5 * std::abs(p - std::exp(log_q));
  }
  result.kl = std::max(0.0, result.kl);  // rounding only
  return result;
}

double NegativeLogProbability(absl::Span<const float> logits, int32_t id) {
  return LogSumExp(logits) - logits[id];
}

absl::StatusOr<Answer> AnswerGreedily(Transformer& model, BlockPool& pool, absl::Span<const BlockId> blocks,
                                      absl::Span<const int32_t> prompt, int max_tokens) {
  Answer answer;
  int32_t next = prompt.back();
  std::vector<float> logits;
  for (int i = 0; i < max_tokens; ++i) {
    BatchItem item;
    item.ids = absl::MakeConstSpan(&next, 1);
    item.position = static_cast<int64_t>(prompt.size()) - 1 + i;
    item.blocks = blocks;
    item.wants_logits = true;
    ALUDEL_RETURN_IF_ERROR(model.Forward(absl::MakeSpan(&item, 1), pool, &logits));
    next = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    answer.tokens.push_back(next);
    answer.logits.insert(answer.logits.end(), logits.begin(), logits.end());
    if (IsEnd(model.config(), next)) break;
  }
  return answer;
}

absl::StatusOr<Divergence> CompareWithOracle(Transformer& model, BlockPool& pool,
                                             absl::Span<const BlockId> blocks,
                                             absl::Span<const int32_t> prompt, const Answer& oracle) {
  const size_t vocab = model.config().vocab;
  Divergence divergence;
  int32_t input = prompt.back();
  std::vector<float> logits;
  for (size_t i = 0; i < oracle.tokens.size(); ++i) {
    BatchItem item;
    item.ids = absl::MakeConstSpan(&input, 1);
    item.position = static_cast<int64_t>(prompt.size() - 1 + i);
    item.blocks = blocks;
    item.wants_logits = true;
    ALUDEL_RETURN_IF_ERROR(model.Forward(absl::MakeSpan(&item, 1), pool, &logits));
    const PairDivergence pair = Diverge(absl::MakeConstSpan(oracle.logits).subspan(i * vocab, vocab), logits);
    divergence.kl.push_back(pair.kl);
    divergence.tv.push_back(pair.tv);
    input = oracle.tokens[i];
  }
  return divergence;
}

}  // namespace aludel
