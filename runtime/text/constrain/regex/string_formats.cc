#include "runtime/text/constrain/regex/string_formats.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

std::vector<std::pair<std::string, std::string>> MakeTable() {
  using absl::StrCat;
  // RFC 3339, with the days that each month has; no leap seconds, and T and Z in capitals.
  const std::string leap_year =
      "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)";
  const std::string day =
      StrCat("(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)",
             "|02-(?:0[1-9]|1[0-9]|2[0-8]))");
  const std::string date = StrCat("(?:[0-9]{4}-", day, "|", leap_year, "-02-29)");
  const std::string hour_minute = "(?:[01][0-9]|2[0-3]):[0-5][0-9]";
  const std::string time = StrCat(hour_minute, ":[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-]", hour_minute, ")");
  // RFC 1123. The bound of 253 characters for all labels together is left to maxLength.
  const std::string label = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
  const std::string atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
  // RFC 3986.
  const std::string octet = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])";
  const std::string ipv4 = StrCat(octet, "(?:\\.", octet, "){3}");
  const std::string h16 = "[0-9A-Fa-f]{1,4}";
  const std::string ls32 = StrCat("(?:", h16, ":", h16, "|", ipv4, ")");
  std::string ipv6 = StrCat("(?:(?:", h16, ":){6}", ls32, "|::(?:", h16, ":){5}", ls32);
  for (int before = 0; before <= 6; ++before) {
    const std::string behind = before < 5    ? StrCat("(?:", h16, ":){", 4 - before, "}", ls32)
                               : before == 5 ? h16
                                             : std::string();
    absl::StrAppend(&ipv6, "|(?:(?:", h16, ":){0,", before, "}", h16, ")?::", behind);
  }
  absl::StrAppend(&ipv6, ")");
  const auto characters = [](const char* more) {
    return StrCat("(?:[A-Za-z0-9._~!$&'()*+,;=", more, "-]|%[0-9A-Fa-f]{2})");
  };
  const std::string segments = StrCat("(?:/", characters(":@"), "*)*");
  const std::string host = StrCat("(?:\\[", ipv6, "\\]|", characters(""), "*)");
  const std::string query = characters(":@/?");
  const std::string uri = StrCat("[A-Za-z][A-Za-z0-9+.-]*:(?://(?:", characters(":"), "*@)?", host,
                                 "(?::[0-9]*)?", segments, "|/(?:", characters(":@"), "+", segments, ")?|",
                                 characters(":@"), "+", segments, ")(?:\\?", query, "*)?(?:#", query, "*)?");
  return {{"date", StrCat("^", date, "$")},
          {"time", StrCat("^", time, "$")},
          {"date-time", StrCat("^", date, "T", time, "$")},
          {"email", StrCat("^", atom, "(?:\\.", atom, ")*@", label, "(?:\\.", label, ")+$")},
          {"hostname", StrCat("^", label, "(?:\\.", label, ")*$")},
          {"uuid", "^[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$"},
          {"uri", StrCat("^", uri, "$")},
          {"ipv4", StrCat("^", ipv4, "$")},
          {"ipv6", StrCat("^", ipv6, "$")}};
}

}  // namespace

absl::string_view FormatPattern(absl::string_view format) {
  static const auto* const table = new auto(MakeTable());
  for (const auto& [name, pattern] : *table) {
    if (name == format) return pattern;
  }
  return "";
}

}  // namespace aludel
