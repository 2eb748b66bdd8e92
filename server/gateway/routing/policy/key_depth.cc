#include "server/gateway/routing/policy/key_depth.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace aludel {
namespace {

// Longer beginnings than the one routed by that are counted, too, so that a long shared one is split in few rounds.
constexpr size_t kAhead = 8;
// Requests for each replica that must have been seen before a share is believed.
constexpr double kSamples = 4;

}  // namespace

size_t KeyDepth::Of(const PrefixKeys& keys) const {
  size_t depth = 0;
  while (depth + 1 < keys.size()) {
    const auto found = counts_.find(keys.keys[depth]);
    if (found == counts_.end() || !found->second.split) break;
    ++depth;
  }
  return depth;
}

size_t KeyDepth::Count(const PrefixKeys& keys, int replicas) {
  increment_ *= std::exp2(1 / kWindow);
  const size_t end = std::min(keys.size(), Of(keys) + 1 + kAhead);
  for (size_t i = 0; i < end; ++i) {
    Count_& count = counts_.try_emplace(keys.keys[i], Count_{.born = total_}).first->second;
    count.weight += increment_;
    const double seen = total_ + increment_ - count.born;
    const double share = count.weight / seen;
    if (count.split) {
      count.split = share * replicas >= 1;
    } else {
      count.split = share * replicas > 2 && seen >= kSamples * replicas * increment_;
    }
  }
  total_ += increment_;
  if (counts_.size() > kMaxKeys) Bound();
  constexpr double kLarge = 1e12;
  if (increment_ > kLarge) {
    for (auto& [key, count] : counts_) {
      count.weight /= increment_;
      count.born /= increment_;
    }
    total_ /= increment_;
    increment_ = 1;
  }
  return Of(keys);
}

// Drops the rarer half.
void KeyDepth::Bound() {
  std::vector<double> weights;
  for (const auto& [key, count] : counts_) weights.push_back(count.weight);
  const auto middle = weights.begin() + static_cast<int64_t>(weights.size() / 2);
  std::nth_element(weights.begin(), middle, weights.end());
  absl::erase_if(counts_, [least = *middle](const auto& entry) { return entry.second.weight <= least; });
}

}  // namespace aludel
