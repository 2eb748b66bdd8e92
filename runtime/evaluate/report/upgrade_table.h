#pragma once

#include <string>

#include "runtime/evaluate/evaluate.h"

namespace aludel {

// EvaluateReport::upgrades as tables, one for each text and format; "" where nothing was measured.
std::string UpgradeMarkdown(const EvaluateReport& report);
std::string UpgradeHtml(const EvaluateReport& report);

}  // namespace aludel
