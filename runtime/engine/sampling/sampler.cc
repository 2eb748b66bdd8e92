#include "runtime/engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/algorithm/container.h"
#include "kernels/check.h"

namespace aludel {
namespace {

constexpr double kMaxLogit = std::numeric_limits<float>::max();

}  // namespace

Sampler::Sampler(const SamplingParams& params, uint64_t seed, uint32_t choice,
                 absl::Span<const int32_t> prompt, int64_t max_completion)
    : sampling_({params.temperature, params.top_k, params.top_p, params.min_p}),
      repetition_penalty_(params.repetition_penalty),
      presence_penalty_(params.presence_penalty),
      frequency_penalty_(params.frequency_penalty),
      bias_(params.logit_bias),
      rules_(params.rules),
      random_(params.seed.value_or(seed), choice) {
  if (repetition_penalty_ != 1.0 || presence_penalty_ != 0.0 || frequency_penalty_ != 0.0) {
    counts_.emplace(prompt, max_completion);
  }
}

int32_t Sampler::Sample(absl::Span<const float> logits, absl::Span<const uint64_t> allowed,
                        SamplerScratch* scratch) {
  ALUDEL_CHECK(!logits.empty() && scratch->row.size() == logits.size());
  const absl::Span<const float> adjusted = Adjust(logits, allowed, scratch);
  const int32_t token = SampleRow(adjusted.data(), static_cast<int64_t>(adjusted.size()), NextDraw());
  if (token != kNoToken) Accept(token);
  return token;
}

std::optional<RowSampling> Sampler::PlainDraw() const {
  if (!bias_.empty() || counts_.has_value() || rules_.restrict_next()) return std::nullopt;
  return NextDraw();
}

void Sampler::Accept(int32_t token) {
  ++position_;
  rules_.Accept(token);
  if (counts_.has_value()) counts_->Add(token);
}

RowSampling Sampler::NextDraw() const {
  RowSampling draw = sampling_;
  draw.uniform = random_.Uniform(position_);
  return draw;
}

absl::Span<const float> Sampler::Adjust(absl::Span<const float> logits, absl::Span<const uint64_t> allowed,
                                        SamplerScratch* scratch) const {
  const bool ruled = rules_.restrict_next();
  if (bias_.empty() && !counts_.has_value() && allowed.empty() && !ruled) return logits;
  std::vector<float>& row = scratch->row;
  std::copy(logits.begin(), logits.end(), row.begin());
  for (const LogitBias& bias : bias_) row[bias.id] += bias.bias;
  if (counts_.has_value()) {
    for (const TokenCounts::Entry& entry : counts_->entries()) {
      double logit = row[entry.id];
      if (!std::isfinite(logit)) continue;
      logit = logit > 0 ? logit / repetition_penalty_ : logit * repetition_penalty_;
      if (entry.generated > 0) logit -= presence_penalty_ + frequency_penalty_ * entry.generated;
      // A small penalty must not make an infinity, and two of them no number.
      row[entry.id] = static_cast<float>(std::clamp(logit, -kMaxLogit, kMaxLogit));
    }
  }
  if (!allowed.empty()) ApplyTokenMask(allowed, absl::MakeSpan(row));
  if (ruled) rules_.Apply(absl::MakeSpan(row));
  return row;
}

bool AreLogits(absl::Span<const float> row) {
  const float highest = std::numeric_limits<float>::max();
  return absl::c_all_of(row, [&](float logit) { return logit <= highest; }) &&
         absl::c_any_of(row, [&](float logit) { return logit >= -highest; });
}

std::vector<TokenLogprob> Logprobs(absl::Span<const float> logits, int32_t chosen, int top) {
  const float maximum = *std::max_element(logits.begin(), logits.end());
  double total = 0.0;
  for (const float logit : logits) total += std::exp(logit - maximum);
  const double normalizer = maximum + std::log(total);

  std::vector<TokenLogprob> result = {{chosen, logits[chosen]}};
  const size_t wanted = 1 + std::min<size_t>(std::max(top, 0), logits.size());
  result.reserve(wanted + 1);
  for (size_t i = 0; i < logits.size() && wanted > 1; ++i) {
    if (result.size() == wanted && logits[i] <= result.back().logprob) continue;
    // In front of the first that is less likely: equal ones stay in the order of their ids.
    const auto at = std::find_if(result.begin() + 1, result.end(),
                                 [&](const TokenLogprob& other) { return other.logprob < logits[i]; });
    result.insert(at, {static_cast<int32_t>(i), logits[i]});
    if (result.size() > wanted) result.pop_back();
  }
  for (TokenLogprob& entry : result) entry.logprob = static_cast<float>(entry.logprob - normalizer);
  return result;
}

}  // namespace aludel
