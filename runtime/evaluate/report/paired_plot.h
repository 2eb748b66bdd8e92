#pragma once

#include <string>

#include "runtime/evaluate/evaluate.h"

namespace aludel {

// F1 that each format loses to the oracle, with its interval, about a line at 0: one <svg> element for report.css.
std::string PairedSvg(const EvaluateReport& report);

}  // namespace aludel
