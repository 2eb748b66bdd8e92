#include "runtime/evaluate/oracle.h"

#include <algorithm>
#include <cmath>

#include "kernels/check.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// Tokens whose logits ForwardEach has in memory at once.
constexpr int64_t kLogitsTogether = 32;

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

namespace {

int32_t Best(absl::Span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// Appends greedy tokens to `answer` until it has `max_tokens` or ends; `next` stands at `position`.
absl::Status Continue(Transformer& model, BlockPool& pool, absl::Span<const BlockId> blocks, int32_t next,
                      int64_t position, int max_tokens, Answer* answer) {
  std::vector<float> logits;
  while (static_cast<int>(answer->tokens.size()) < max_tokens) {
    BatchItem item;
    item.ids = absl::MakeConstSpan(&next, 1);
    item.position = position++;
    item.blocks = blocks;
    item.wants_logits = true;
    ALUDEL_RETURN_IF_ERROR(model.Forward(absl::MakeSpan(&item, 1), pool, &logits));
    next = Best(logits);
    answer->tokens.push_back(next);
    answer->logits.insert(answer->logits.end(), logits.begin(), logits.end());
    if (IsEnd(model.config(), next)) break;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Answer> AnswerGreedily(Transformer& model, BlockPool& pool, absl::Span<const BlockId> blocks,
                                      absl::Span<const int32_t> prompt, int max_tokens) {
  Answer answer;
  ALUDEL_RETURN_IF_ERROR(Continue(model, pool, blocks, prompt.back(), static_cast<int64_t>(prompt.size()) - 1,
                                  max_tokens, &answer));
  return answer;
}

absl::Status ForwardEach(Transformer& model, BlockPool& pool, absl::Span<const BlockId> blocks,
                         absl::Span<const int32_t> ids, int64_t begin, int64_t end,
                         absl::FunctionRef<void(int64_t token, absl::Span<const float> logits)> each) {
  const auto vocab = static_cast<size_t>(model.config().vocab);
  std::vector<float> logits;
  for (int64_t at = begin; at < end;) {
    // One item per token, because each wants its logits; a layer's keys are all written before it attends.
    std::vector<BatchItem> items(std::min({kLogitsTogether, model.options().max_rows, end - at}));
    for (size_t i = 0; i < items.size(); ++i) {
      items[i].ids = ids.subspan(at + static_cast<int64_t>(i), 1);
      items[i].position = at + static_cast<int64_t>(i);
      items[i].blocks = blocks;
      items[i].wants_logits = true;
    }
    ALUDEL_RETURN_IF_ERROR(model.Forward(absl::MakeSpan(items), pool, &logits));
    for (size_t i = 0; i < items.size(); ++i) {
      each(at++, absl::MakeConstSpan(logits).subspan(i * vocab, vocab));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Divergence> CompareWithOracle(Transformer& model, BlockPool& pool,
                                             absl::Span<const BlockId> blocks,
                                             absl::Span<const int32_t> prompt, const Answer& oracle,
                                             LayerObserver* observer) {
  const size_t vocab = model.config().vocab;
  std::vector<int32_t> inputs = {prompt.back()};
  inputs.insert(inputs.end(), oracle.tokens.begin(), oracle.tokens.end() - 1);
  Divergence divergence;
  std::vector<float> logits;
  const auto max_rows = static_cast<size_t>(model.options().max_rows);
  for (size_t begin = 0; begin < inputs.size(); begin += max_rows) {
    // One item per token, because each wants its logits; a layer's keys are all written before it attends.
    std::vector<BatchItem> items(std::min(max_rows, inputs.size() - begin));
    for (size_t i = 0; i < items.size(); ++i) {
      items[i].ids = absl::MakeConstSpan(inputs).subspan(begin + i, 1);
      items[i].position = static_cast<int64_t>(prompt.size() - 1 + begin + i);
      items[i].blocks = blocks;
      items[i].wants_logits = true;
      items[i].observer = observer;
    }
    ALUDEL_RETURN_IF_ERROR(model.Forward(absl::MakeSpan(items), pool, &logits));
    for (size_t i = 0; i < items.size(); ++i) {
      ALUDEL_RETURN_IF_ERROR(items[i].observer_status);
      const auto mine = absl::MakeConstSpan(logits).subspan(i * vocab, vocab);
      const PairDivergence pair =
          Diverge(absl::MakeConstSpan(oracle.logits).subspan((begin + i) * vocab, vocab), mine);
      divergence.kl.push_back(pair.kl);
      divergence.tv.push_back(pair.tv);
      divergence.choices.push_back(Best(mine));
    }
  }
  return divergence;
}

absl::StatusOr<std::vector<int32_t>> AnswerAfterComparison(Transformer& model, BlockPool& pool,
                                                           absl::Span<const BlockId> blocks,
                                                           absl::Span<const int32_t> prompt,
                                                           const Answer& oracle, const Divergence& divergence,
                                                           int max_tokens) {
  ALUDEL_CHECK(divergence.choices.size() == oracle.tokens.size());
  const auto [other, kept] =
      std::mismatch(divergence.choices.begin(), divergence.choices.end(), oracle.tokens.begin());
  if (other == divergence.choices.end()) return oracle.tokens;
  Answer answer;
  answer.tokens.assign(divergence.choices.begin(), other + 1);
  if (!IsEnd(model.config(), *other)) {
    const auto position = static_cast<int64_t>(prompt.size() - 1 + answer.tokens.size());
    ALUDEL_RETURN_IF_ERROR(Continue(model, pool, blocks, *other, position, max_tokens, &answer));
  }
  return std::move(answer.tokens);
}

}  // namespace aludel
