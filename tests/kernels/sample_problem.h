#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <ostream>
#include <random>
#include <vector>

#include "kernels/sample.h"

namespace aludel {

inline std::ostream& operator<<(std::ostream& out, const RowSampling& sampling) {
  return out << "temperature " << sampling.temperature << " top_k " << sampling.top_k << " top_p "
             << sampling.top_p << " min_p " << sampling.min_p << " uniform " << sampling.uniform;
}

// A row of one of the kinds that a draw has to cope with. All logits are multiples of 2^-10, so that two are
// equal or far enough apart that no rounding makes them so.
inline std::vector<float> RandomLogits(int64_t vocab, std::mt19937_64& random) {
  enum { kUsual, kNarrow, kWide, kFewValues, kAllEqual, kMasked, kZeros, kHuge, kKinds };
  const auto kind = static_cast<int>(random() % kKinds);
  const float scale = kind == kNarrow ? 0.02f : kind == kWide ? 40.0f : kind == kHuge ? 1e30f : 3.0f;
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> logits(vocab);
  for (float& logit : logits) {
    const float step = kind == kFewValues ? 1.0f : 0x1p-10f;
    logit = std::round(normal(random) / step) * step;
    if (kind == kAllEqual) logit = -1.25f;
    if (kind == kMasked && random() % 3 != 0) logit = -std::numeric_limits<float>::infinity();
    if (kind == kZeros) logit = random() % 2 == 0 ? 0.0f : -0.0f;
  }
  if (kind == kMasked) logits[random() % vocab] = 0.5f;
  return logits;
}

inline RowSampling RandomSampling(int64_t vocab, std::mt19937_64& random) {
  const auto one_of = [&](const std::vector<double>& values) { return values[random() % values.size()]; };
  RowSampling sampling;
  sampling.temperature = one_of({0.0, 2e-5, 0.05, 0.5, 1.0, 1.0, 1.7, 1000.0});
  sampling.top_k = static_cast<int>(one_of({0, 0, 0, 1, 2, 7, 50, static_cast<double>(vocab) - 1,
                                            static_cast<double>(vocab), static_cast<double>(vocab) + 5}));
  sampling.top_p = one_of({0.0, 1e-300, 1e-3, 0.5, 0.9, 0.999999, 1.0, 1.0, 1.0});
  sampling.min_p = one_of({0.0, 0.0, 0.0, 0.01, 0.3, 1.0});
  const double drawn = std::uniform_real_distribution<double>()(random);
  sampling.uniform = one_of({0.0, 0.5, 1.0 - 0x1p-53, drawn, drawn, drawn, drawn});
  return sampling;
}

}  // namespace aludel
