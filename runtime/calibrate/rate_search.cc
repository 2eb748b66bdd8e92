#include "runtime/calibrate/rate_search.h"

#include <algorithm>
#include <cmath>

namespace aludel {
namespace {

constexpr int kTrials = 6;
constexpr double kWorthwhile = 0.9;  // of the rate that is known to do
constexpr double kLeastCut = 0.6;
constexpr double kDeepestCut = 1.0 / 6;
constexpr double kLeastBytes = 2;  // headers of frames are more

}  // namespace

std::optional<double> RateSearch::Next(double guess) const {
  if (trials_ == kTrials) return std::nullopt;
  const double next = missed_.has_value() ? std::sqrt(met_ * *missed_)
                                          : std::clamp(guess, kDeepestCut * met_, kLeastCut * met_);
  if (next > kWorthwhile * met_ || next < kLeastBytes) return std::nullopt;
  return next;
}

void RateSearch::Met(double bytes) {
  met_ = bytes;
  ++trials_;
}

void RateSearch::Missed(double bytes) {
  missed_ = bytes;
  ++trials_;
}

}  // namespace aludel
