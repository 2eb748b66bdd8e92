#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace aludel {

// "9.1 GB", in powers of ten.
std::string FormatBytes(double bytes);

// "9.1 s", "11 min", "2.5 h".
std::string FormatSeconds(double seconds);

// A number and a unit: "8GB", "1.5 GiB", "500MB", or bytes where there is no unit. `flag` is named in errors.
absl::StatusOr<int64_t> ParseBytes(absl::string_view flag, absl::string_view text);

// "20m", "1h30m", "90s"; positive. `flag` is named in errors.
absl::StatusOr<double> ParseSeconds(absl::string_view flag, absl::string_view text);

}  // namespace aludel
