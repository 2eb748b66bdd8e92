#pragma once

#include <string>

#include "nlohmann/json.hpp"

namespace aludel {

// A report for people: objects become sections of "name  value" lines, lists of objects become tables, and
// numbers whose name says bytes or parameters get units. Hashes are cut to twelve digits.
std::string RenderText(const nlohmann::ordered_json& report);

}  // namespace aludel
