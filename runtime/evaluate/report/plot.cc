#include "runtime/evaluate/report/plot.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace aludel {
namespace {

// Okabe and Ito's colors, which most color-blind readers tell apart; for their yellow, invisible on white,
// a violet.
constexpr std::array<const char*, 8> kColors = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                "#e69f00", "#56b4e9", "#7b3294", "#888888"};
constexpr std::array<const char*, 5> kDashes = {"none", "6 3", "2 3", "8 3 2 3", "12 4"};

std::string Family(const std::string& label) { return label.substr(0, label.find('-')); }

}  // namespace

double PlotAxis::At(double value) const {
  if (log && value <= 0) return zero;
  const double at = log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
  return begin + std::clamp(at, 0.0, 1.0) * (end - begin);
}

std::vector<SeriesStyle> StyleSeries(const std::vector<std::string>& labels) {
  std::vector<std::string> families;
  std::vector<size_t> members;
  std::vector<SeriesStyle> styles;
  for (const std::string& label : labels) {
    const auto known = std::find(families.begin(), families.end(), Family(label));
    const size_t family = known - families.begin();
    if (known == families.end()) {
      families.push_back(Family(label));
      members.push_back(0);
    }
    styles.push_back({kColors[family % kColors.size()], kDashes[members[family]++ % kDashes.size()]});
  }
  return styles;
}

// Covers the positive ones of `values` from 1, 2 or 5 times a power of ten to another.
PlotAxis LogAxis(const std::vector<double>& values) {
  PlotAxis axis;
  axis.log = true;
  double least = HUGE_VAL, most = 0;
  for (const double value : values) {
    if (value <= 0) continue;
    least = std::min(least, value);
    most = std::max(most, value);
  }
  if (most == 0) least = most = 1;
  std::vector<double> steps;
  for (double decade = std::floor(std::log10(least)) - 1; decade <= std::ceil(std::log10(most)); ++decade) {
    for (const double digit : {1.0, 2.0, 5.0}) steps.push_back(digit * std::pow(10.0, decade));
  }
  // A margin of 15 % keeps points off the frame.
  const auto first = std::upper_bound(steps.begin(), steps.end(), least / 1.15) - 1;
  const auto last = std::lower_bound(steps.begin(), steps.end(), most * 1.15);
  axis.low = *first;
  axis.high = *last;
  const bool decades_only = last - first > 9;
  for (auto step = first; step <= last; ++step) {
    const bool decade = (step - steps.begin()) % 3 == 0;
    if (decade || !decades_only) axis.ticks.push_back(*step);
  }
  return axis;
}

// Covers `values` in steps of a tenth.
PlotAxis TenthsAxis(const std::vector<double>& values) {
  PlotAxis axis;
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  const auto first = static_cast<int>(std::floor(*least * 10 + 1e-9));
  const auto last = std::max(first + 1, static_cast<int>(std::ceil(*most * 10 - 1e-9)));
  axis.low = first / 10.0;
  axis.high = last / 10.0;
  for (int tick = first; tick <= last; ++tick) axis.ticks.push_back(tick / 10.0);
  return axis;
}

}  // namespace aludel
