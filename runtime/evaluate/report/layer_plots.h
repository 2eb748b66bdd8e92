#pragma once

#include <string>
#include <vector>

#include "runtime/evaluate/evaluate.h"

namespace aludel {

// The report's drawings by layer, each one <svg> element for report_html.cc's style sheet. Series and panels
// carry data-format="NAME", so that the page can hide a format everywhere.

enum class ErrorMetric { kK, kV, kLogits, kOutput };

// Relative error against layer, one line per format; a layer without error has a place below the axis.
std::string LayerErrorSvg(const std::vector<FormatResult>& formats, ErrorMetric metric);

// Where one format's bytes per token go: a stack of K, V, H, x, code and header over each layer. Codes of
// several layers together are one wide bar, whose area is theirs.
std::string AllocationSvg(const FormatResult& format, int layers);

// One line of <label> switches for formats that appear in these drawings.
std::string FormatSwitches(const std::vector<FormatResult>& formats);
// What the colors of AllocationSvg mean.
std::string AllocationLegend();

}  // namespace aludel
