#pragma once

#include <string>
#include <vector>

namespace aludel {

// What the report's drawings share.

// Values to pixels.
struct PlotAxis {
  bool log = false;
  double low = 0, high = 1;   // values at the ends
  double begin = 0, end = 0;  // pixels at the ends
  double zero = 0;            // pixel of a value of 0 on a logarithmic axis
  std::vector<double> ticks;

  double At(double value) const;
};

// Covers the positive ones of `values` from 1, 2 or 5 times a power of ten to another.
PlotAxis LogAxis(const std::vector<double>& values);
// Covers `values` in steps of a tenth.
PlotAxis TenthsAxis(const std::vector<double>& values);

// Formats of one preset share a color ("scd-4" and "scd-2", not "int8" and "int4") and differ in dashes.
struct SeriesStyle {
  const char* color;
  const char* dashes;  // of SVG's stroke-dasharray
};
std::vector<SeriesStyle> StyleSeries(const std::vector<std::string>& labels);

}  // namespace aludel
