#include "runtime/tool/byte_size.h"

#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace aludel {
namespace {

// The longest suffix first: "GiB" ends as "B" does.
constexpr std::array<std::pair<absl::string_view, double>, 9> kUnits = {{{"KiB", 0x1p10},
                                                                         {"MiB", 0x1p20},
                                                                         {"GiB", 0x1p30},
                                                                         {"TiB", 0x1p40},
                                                                         {"KB", 1e3},
                                                                         {"MB", 1e6},
                                                                         {"GB", 1e9},
                                                                         {"TB", 1e12},
                                                                         {"B", 1}}};
constexpr double kMostBytes = 1e18;

}  // namespace

std::string FormatBytes(double bytes) {
  if (bytes >= 1e9) return absl::StrFormat("%.1f GB", bytes / 1e9);
  if (bytes >= 1e6) return absl::StrFormat("%.1f MB", bytes / 1e6);
  return absl::StrFormat("%.1f KB", bytes / 1e3);
}

std::string FormatSeconds(double seconds) {
  if (seconds < 100) return absl::StrFormat("%.1f s", seconds);
  if (seconds < 100 * 60) return absl::StrFormat("%.1f min", seconds / 60);
  return absl::StrFormat("%.1f h", seconds / 3600);
}

absl::StatusOr<int64_t> ParseBytes(absl::string_view flag, absl::string_view text) {
  absl::string_view number = text;
  double unit = 1;
  for (const auto& [name, factor] : kUnits) {
    if (absl::EndsWithIgnoreCase(text, name)) {
      number.remove_suffix(name.size());
      unit = factor;
      break;
    }
  }
  double value = 0;
  if (!absl::SimpleAtod(absl::StripAsciiWhitespace(number), &value) || !(value > 0) ||
      !(value * unit >= 1 && value * unit <= kMostBytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " is \"", text, "\", want a size as 8GB, 500MB or 1.5GiB"));
  }
  return static_cast<int64_t>(value * unit);
}

absl::StatusOr<double> ParseSeconds(absl::string_view flag, absl::string_view text) {
  absl::Duration duration;
  if (!absl::ParseDuration(text, &duration) || duration <= absl::ZeroDuration() ||
      duration == absl::InfiniteDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flag, " is \"", text, "\", want a time as 20m, 90s or 1h30m"));
  }
  return absl::ToDoubleSeconds(duration);
}

}  // namespace aludel
