#include "runtime/calibrate/aludel/gradient/cache_gradient.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "runtime/calibrate/aludel/gradient/tail_pass.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

bool AllFinite(absl::Span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); });
}

// Where the last token stands, or why the branches do not fit.
absl::StatusOr<int64_t> LastPosition(const CachedTail& input) {
  const auto tail = static_cast<int64_t>(input.tail.size());
  if (input.branches.empty()) return input.tokens + tail - 1;
  int64_t last = 0, tails = 0;
  for (const TailBranch& branch : input.branches) {
    if (branch.rows < 0 || branch.first_row < input.trunk || branch.first_row + branch.rows > input.tokens ||
        branch.tail < 1) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "a branch of rows %d to %d and a tail of %d on a trunk of %d tokens, the cache has %d",
          branch.first_row, branch.first_row + branch.rows, branch.tail, input.trunk, input.tokens));
    }
    last = std::max(last, input.trunk + branch.rows + branch.tail - 1);
    tails += branch.tail;
  }
  if (tails == tail && input.trunk >= 0) return last;
  return absl::InvalidArgumentError(absl::StrFormat(
      "the branches' tails have %d tokens behind a trunk of %d, the input has %d", tails, input.trunk, tail));
}

absl::Status Check(const CachedTail& input, const ModelConfig& config, int64_t columns) {
  if (input.tokens < 0 || static_cast<int64_t>(input.cache.size()) != input.tokens * columns) {
    return absl::InvalidArgumentError(absl::StrFormat("a cache of %d tokens has %d numbers, want %d each",
                                                      input.tokens, input.cache.size(), columns));
  }
  if (input.tail.empty()) return absl::InvalidArgumentError("the tail is empty, want at least one token");
  ALUDEL_ASSIGN_OR_RETURN(const int64_t last, LastPosition(input));
  if (last >= config.max_positions) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "position %d is beyond the model's context of %d tokens", last, config.max_positions));
  }
  for (const int32_t id : input.tail) {
    if (id < 0 || id >= config.vocab) {
      return absl::InvalidArgumentError(absl::StrFormat("token id %d, vocabulary has %d", id, config.vocab));
    }
  }
  if (!AllFinite(input.cache))
    return absl::InvalidArgumentError("the cache holds a number that is not finite");
  return absl::OkStatus();
}

absl::Status NotFinite() {
  return absl::InvalidArgumentError("the model's logits on this cache are not finite");
}

// log of the sum of exponentials.
double LogSum(absl::Span<const float> logits) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - top);
  return top + std::log(sum);
}

// A label with its probability under softmax(logits): the first whose cumulative probability passes a
// uniform number. The generator's output is fixed by the standard, unlike std distributions'.
int64_t Draw(absl::Span<const float> logits, double log_sum, std::mt19937_64& random) {
  const double target = static_cast<double>(random() >> 11) * 0x1p-53;
  double cumulative = 0;
  int64_t last = 0;  // rounding may leave the sum below the target
  for (size_t v = 0; v < logits.size(); ++v) {
    const double p = std::exp(logits[v] - log_sum);
    if (p > 0) last = static_cast<int64_t>(v);
    cumulative += p;
    if (cumulative > target) break;
  }
  return last;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CacheGradient>> CacheGradient::Load(const ModelPath& path, int64_t rope_length,
                                                                   DType matrices) {
  ALUDEL_ASSIGN_OR_RETURN(std::unique_ptr<HostModel> model, HostModel::Load(path, matrices));
  return std::unique_ptr<CacheGradient>(new CacheGradient(std::move(model), rope_length));
}

CacheGradient::CacheGradient(std::unique_ptr<HostModel> model, int64_t rope_length)
    : model_(std::move(model)),
      pass_(std::make_unique<TailPass>(TailPass{
          Rotations(MakeRopeFrequencies(config(), std::max(config().max_positions, rope_length)))})) {}

CacheGradient::~CacheGradient() = default;

absl::Status CacheGradient::Forward(const CachedTail& input) {
  ALUDEL_RETURN_IF_ERROR(Check(input, config(), columns()));
  RunTail(*model_, input, pass_.get());
  return AllFinite(pass_->logits) ? absl::OkStatus() : NotFinite();
}

absl::Status CacheGradient::Backward(double loss, const std::vector<float>& d_logits,
                                     std::vector<float>* gradient) {
  RunTailBackward(*model_, d_logits, pass_.get(), gradient);
  if (!std::isfinite(loss) || !AllFinite(*gradient)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a loss of %g on this cache or its gradient is not finite", loss));
  }
  return absl::OkStatus();
}

absl::Status CacheGradient::Logits(const CachedTail& input, std::vector<float>* logits) {
  ALUDEL_RETURN_IF_ERROR(Forward(input));
  *logits = pass_->logits;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::vector<int32_t>>> CacheGradient::Answer(
    const CachedTail& input, int64_t most,
    absl::FunctionRef<void(size_t branch, absl::Span<const float> logits)> seen) {
  ALUDEL_RETURN_IF_ERROR(Check(input, config(), columns()));
  const size_t branches = std::max<size_t>(1, input.branches.size());
  if (most < 1 || input.tail.size() != branches) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d tokens for %d answers of at most %d, want one for each, and answers of 1 or more",
                        input.tail.size(), branches, most));
  }
  const std::vector<int>& ends = config().eos_ids;
  const auto vocab = static_cast<size_t>(config().vocab);
  std::vector<std::vector<int32_t>> answers(branches);
  std::vector<size_t> live(branches);
  std::iota(live.begin(), live.end(), size_t{0});
  std::vector<int32_t> ids(input.tail.begin(), input.tail.end());
  StartSteps(*model_, input, most, pass_.get());
  for (int64_t step = 0; !live.empty(); ++step) {
    RunStep(*model_, input, most, step, live, ids, pass_.get());
    if (!AllFinite(pass_->logits)) return NotFinite();
    std::vector<size_t> going_on;
    ids.clear();
    for (size_t i = 0; i < live.size(); ++i) {
      const auto logits = absl::MakeConstSpan(pass_->logits).subspan(i * vocab, vocab);
      const auto token =
          static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      seen(live[i], logits);
      answers[live[i]].push_back(token);
      const bool over = step + 1 == most || std::count(ends.begin(), ends.end(), token) > 0 ||
                        pass_->positions[pass_->rows[i]] + 1 >= config().max_positions;
      if (over) continue;
      going_on.push_back(live[i]);
      ids.push_back(token);
    }
    live = std::move(going_on);
  }
  return answers;
}

absl::StatusOr<double> CacheGradient::Kl(const CachedTail& input, absl::Span<const float> target_logprobs,
                                         std::vector<float>* gradient) {
  const auto vocab = static_cast<size_t>(config().vocab);
  if (target_logprobs.size() != input.tail.size() * vocab) {
    return absl::InvalidArgumentError(absl::StrFormat("%d target log-probabilities, want %d for each of %d",
                                                      target_logprobs.size(), vocab, input.tail.size()));
  }
  ALUDEL_RETURN_IF_ERROR(Forward(input));
  std::vector<float> d_logits(pass_->logits.size());
  const double share = 1.0 / static_cast<double>(pass_->tail);
  double kl = 0;
  for (size_t at = 0; at < d_logits.size(); at += vocab) {
    const auto logits = absl::MakeConstSpan(pass_->logits).subspan(at, vocab);
    const double log_sum = LogSum(logits);
    double mass = 0;  // of the target; 1 but for rounding
    for (size_t v = 0; v < vocab; ++v) {
      const double log_target = target_logprobs[at + v];
      const double target = std::exp(log_target);
      mass += target;
      if (target != 0) kl += share * target * (log_target - (logits[v] - log_sum));  // NaN stays
    }
    for (size_t v = 0; v < vocab; ++v) {
      const double target = std::exp(static_cast<double>(target_logprobs[at + v]));
      d_logits[at + v] = static_cast<float>(share * (mass * std::exp(logits[v] - log_sum) - target));
    }
  }
  ALUDEL_RETURN_IF_ERROR(Backward(kl, d_logits, gradient));
  return kl;
}

absl::StatusOr<double> CacheGradient::SampledLogProbability(const CachedTail& input, std::mt19937_64& random,
                                                            std::vector<float>* gradient) {
  ALUDEL_RETURN_IF_ERROR(Forward(input));
  const auto vocab = static_cast<size_t>(config().vocab);
  std::vector<float> d_logits(pass_->logits.size());
  double sum = 0;
  for (size_t at = 0; at < d_logits.size(); at += vocab) {
    const auto logits = absl::MakeConstSpan(pass_->logits).subspan(at, vocab);
    const double log_sum = LogSum(logits);
    for (size_t v = 0; v < vocab; ++v) d_logits[at + v] = static_cast<float>(-std::exp(logits[v] - log_sum));
    const int64_t label = Draw(logits, log_sum, random);
    d_logits[at + label] += 1.0f;
    sum += logits[label] - log_sum;
  }
  ALUDEL_RETURN_IF_ERROR(Backward(sum, d_logits, gradient));
  return sum;
}

}  // namespace aludel
