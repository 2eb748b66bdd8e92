#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/check.h"

namespace aludel {
namespace {

constexpr double kMaxLogit = std::numeric_limits<float>::max();

using Candidates = std::vector<std::pair<float, int32_t>>;

// The likeliest token has practically all the weight, and one over a smaller number leaves the range of
// floats.
constexpr double kGreedyBelow = 1e-5;

// A total order, so that equal weights are cut the same way every time.
bool Likelier(const std::pair<float, int32_t>& a, const std::pair<float, int32_t>& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

void KeepTopK(size_t top_k, Candidates* candidates) {
  if (top_k < candidates->size()) {
    std::nth_element(candidates->begin(), candidates->begin() + top_k, candidates->end(), Likelier);
    candidates->resize(top_k);
  }
  std::sort(candidates->begin(), candidates->end(), Likelier);
}

// Sorts ever larger heads: the set is a handful of tokens of a vocabulary of 100,000, mostly.
void KeepTopP(double wanted, Candidates* candidates) {
  size_t sorted = 0;
  size_t count = 0;
  double kept = 0.0;
  while (count < candidates->size() && kept < wanted) {
    if (count == sorted) {
      const size_t next = std::min(candidates->size(), std::max<size_t>(64, 4 * sorted));
      const auto head = candidates->begin() + sorted;
      const auto tail = candidates->begin() + next;
      if (next < candidates->size()) std::nth_element(head, tail, candidates->end(), Likelier);
      std::sort(head, tail, Likelier);
      sorted = next;
    }
    kept += (*candidates)[count++].first;
  }
  candidates->resize(std::max<size_t>(count, 1));
}

double Sum(const Candidates& candidates) {
  double total = 0.0;
  for (const auto& [weight, id] : candidates) total += weight;
  return total;
}

}  // namespace

Sampler::Sampler(const SamplingParams& params, uint64_t seed, uint32_t choice,
                 absl::Span<const int32_t> prompt, int64_t max_completion)
    : temperature_(params.temperature),
      top_k_(params.top_k),
      top_p_(params.top_p),
      min_p_(params.min_p),
      repetition_penalty_(params.repetition_penalty),
      presence_penalty_(params.presence_penalty),
      frequency_penalty_(params.frequency_penalty),
      bias_(params.logit_bias),
      random_(params.seed.value_or(seed), choice) {
  if (repetition_penalty_ != 1.0 || presence_penalty_ != 0.0 || frequency_penalty_ != 0.0) {
    counts_.emplace(prompt, max_completion);
  }
}

int32_t Sampler::Sample(absl::Span<const float> logits, absl::Span<const uint64_t> allowed,
                        SamplerScratch* scratch) {
  ALUDEL_CHECK(!logits.empty() && scratch->row.size() == logits.size());
  const absl::Span<const float> adjusted = Adjust(logits, allowed, scratch);
  int32_t token = 0;
  if (temperature_ < kGreedyBelow) {
    token = static_cast<int32_t>(std::max_element(adjusted.begin(), adjusted.end()) - adjusted.begin());
  } else {
    token = Draw(adjusted, random_.Uniform(position_), scratch);
  }
  ++position_;
  if (counts_.has_value()) counts_->Add(token);
  return token;
}

absl::Span<const float> Sampler::Adjust(absl::Span<const float> logits, absl::Span<const uint64_t> allowed,
                                        SamplerScratch* scratch) const {
  if (bias_.empty() && !counts_.has_value() && allowed.empty()) return logits;
  std::vector<float>& row = scratch->row;
  std::copy(logits.begin(), logits.end(), row.begin());
  for (const LogitBias& bias : bias_) row[bias.id] += bias.bias;
  if (counts_.has_value()) {
    for (const TokenCounts::Entry& entry : counts_->entries()) {
      double logit = row[entry.id];
      logit = logit > 0 ? logit / repetition_penalty_ : logit * repetition_penalty_;
      if (entry.generated > 0) logit -= presence_penalty_ + frequency_penalty_ * entry.generated;
      // A small penalty must not make an infinity, and two of them no number.
      row[entry.id] = static_cast<float>(std::clamp(logit, -kMaxLogit, kMaxLogit));
    }
  }
  if (!allowed.empty()) {
    for (size_t i = 0; i < row.size(); ++i) {
      if ((allowed[i / 64] >> (i % 64) & 1) == 0) row[i] = -std::numeric_limits<float>::infinity();
    }
  }
  return row;
}

int32_t Sampler::Draw(absl::Span<const float> logits, double uniform, SamplerScratch* scratch) const {
  const float maximum = *std::max_element(logits.begin(), logits.end());
  const auto scale = static_cast<float>(1.0 / temperature_);
  Candidates& candidates = scratch->candidates;
  candidates.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    const float weight = std::exp((logits[i] - maximum) * scale);
    if (weight > 0) candidates.emplace_back(weight, static_cast<int32_t>(i));
  }
  if (top_k_ > 0) KeepTopK(top_k_, &candidates);
  if (top_p_ > 0.0 && top_p_ < 1.0) KeepTopP(top_p_ * Sum(candidates), &candidates);
  // The likeliest token weighs 1.
  if (min_p_ > 0.0) {
    std::erase_if(candidates, [this](const auto& candidate) { return candidate.first < min_p_; });
  }
  double draw = uniform * Sum(candidates);
  for (const auto& [weight, id] : candidates) {
    draw -= weight;
    if (draw < 0.0) return id;
  }
  return candidates.back().second;
}

std::vector<TokenLogprob> Logprobs(absl::Span<const float> logits, int32_t chosen, int top) {
  const float maximum = *std::max_element(logits.begin(), logits.end());
  double total = 0.0;
  for (const float logit : logits) total += std::exp(logit - maximum);
  const double normaliser = maximum + std::log(total);

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
  for (TokenLogprob& entry : result) entry.logprob = static_cast<float>(entry.logprob - normaliser);
  return result;
}

}  // namespace aludel
