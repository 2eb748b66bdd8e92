#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/evaluate/score.h"

namespace aludel {

struct PlotPoint {
  std::string label;
  double bytes = 0;  // per token; 0 has a place of its own left of the logarithmic axis
  double value = 0;
  Interval ci95;
};

// A quality-bytes plot: what to draw, and which way is better.
struct ParetoPlot {
  std::string title;
  std::string value_name;
  bool log_value = false;  // values of 0 then have a place of their own below the axis
  bool higher_is_better = true;
  std::vector<PlotPoint> points;
  std::optional<PlotPoint> reference;  // a level across the plot, its interval as a band
};

// Indices of points that no other point beats in one of bytes and value without losing in the other, by
// rising bytes; of equal points the first.
std::vector<size_t> ParetoFront(const ParetoPlot& plot);

// One <svg> element that needs nothing but the colors of report_html.cc's style sheet. Labels are placed
// greedily where they cover no point and no other label, as far as there is room.
std::string ParetoSvg(const ParetoPlot& plot);

}  // namespace aludel
