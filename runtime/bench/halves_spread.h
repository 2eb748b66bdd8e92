#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace aludel {

// How far two timings of a thing are apart, by how much of their mean: the medians of the even and of the odd ones of `values`,
// which are all above 0 and in the order in which they were measured. Nothing where there are fewer than two.
inline std::optional<double> HalvesSpread(const std::vector<double>& values) {
  if (values.size() < 2) return std::nullopt;
  double medians[2];
  for (size_t first = 0; first < 2; ++first) {
    std::vector<double> half;
    for (size_t i = first; i < values.size(); i += 2) half.push_back(values[i]);
    const auto middle = half.begin() + static_cast<int64_t>(half.size()) / 2;
    std::nth_element(half.begin(), middle, half.end());
    medians[first] = *middle;
  }
  return 2 * std::fabs(medians[0] - medians[1]) / (medians[0] + medians[1]);
}

}  // namespace aludel
