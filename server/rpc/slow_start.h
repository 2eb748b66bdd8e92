#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "server/rpc/cache_events/prompt_keys.h"

namespace aludel {

// What a server that has just started gets of its share: its caches are empty, and what is predicted of it was never measured.
// The share grows with its age. Gateways bring decode servers in so, and those prefill servers. Pure functions; seconds.
inline constexpr double kSlowStartSeconds = 30;
// Of its share, in its first moment.
inline constexpr double kLeastWeight = 0.1;
// Servers that started within so much of each other share alike.
inline constexpr double kTogetherSeconds = 5;

// `over`: from when on it has its whole share; 0 or less: it has it at once.
inline double SlowStartWeight(double age, double over) {
  if (over <= 0) return 1;
  return std::clamp(age / over, kLeastWeight, 1.0);
}

// Of the servers that may be chosen; nothing for an age that is not known: it is old. Where all are new, none is.
inline std::vector<double> SlowStartWeights(absl::Span<const std::optional<double>> ages, double over) {
  double oldest = 0, most = 0;
  for (const std::optional<double>& age : ages) {
    oldest = std::max(oldest, age.value_or(over));
    most = std::max(most, SlowStartWeight(age.value_or(over), over));
  }
  std::vector<double> weights;
  for (const std::optional<double>& age : ages) {
    const double own = age.value_or(over);
    const bool whole = oldest - own < kTogetherSeconds;
    weights.push_back(whole ? 1 : SlowStartWeight(own, over) / most);
  }
  return weights;
}

// Whether a server of this weight takes what `key` stands for: it has taken a share of all keys that is its weight, and keeps
// each that it has taken. `id`: a hash of the server's name.
inline bool TakesKey(double weight, uint64_t key, uint64_t id) {
  return weight >= 1 || static_cast<double>(MixBits(key ^ id) >> 11) * 0x1p-53 < weight;
}

}  // namespace aludel
