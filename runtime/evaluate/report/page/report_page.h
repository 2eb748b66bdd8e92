#pragma once

#include "absl/strings/string_view.h"

namespace aludel {

// Style and script of the report's page: report.css and report.js, put into the binary by CMake.
extern const absl::string_view kReportStyle;
extern const absl::string_view kReportScript;

}  // namespace aludel
