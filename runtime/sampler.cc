#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>

#include "kernels/check.h"

namespace aludel {

Sampler::Sampler(const SamplingParams& params)
    : temperature_(params.temperature),
      top_k_(params.top_k),
      top_p_(params.top_p),
      random_(params.seed.has_value() ? *params.seed : std::random_device{}()) {}

int32_t Sampler::Sample(absl::Span<const float> logits) {
  ALUDEL_CHECK(!logits.empty());
  if (temperature_ <= 0.0) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) candidates_.emplace_back(logits[i], static_cast<int32_t>(i));
  // A total order, so that equal logits are cut the same way every time.
  const auto likelier = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  if (top_k_ > 0 && static_cast<size_t>(top_k_) < candidates_.size()) {
    std::nth_element(candidates_.begin(), candidates_.begin() + top_k_, candidates_.end(), likelier);
    candidates_.resize(top_k_);
  }
  std::sort(candidates_.begin(), candidates_.end(), likelier);

  double total = 0.0;
  const double maximum = candidates_.front().first;
  for (auto& [value, id] : candidates_) {
    value = static_cast<float>(std::exp((value - maximum) / temperature_));
    total += value;
  }
  if (top_p_ > 0.0 && top_p_ < 1.0) {
    double kept = 0.0;
    size_t count = 0;
    while (count < candidates_.size() && kept < top_p_ * total) kept += candidates_[count++].first;
    candidates_.resize(std::max<size_t>(count, 1));
    total = kept;
  }
  // 53 random bits: the same draw on every platform, which std::uniform_real_distribution does not promise.
  double draw = static_cast<double>(random_() >> 11) * 0x1.0p-53 * total;
  for (const auto& [weight, id] : candidates_) {
    draw -= weight;
    if (draw < 0.0) return id;
  }
  return candidates_.back().second;
}

}  // namespace aludel
