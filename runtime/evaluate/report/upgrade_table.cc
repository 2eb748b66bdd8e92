#include "runtime/evaluate/report/upgrade_table.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/tool/html_page.h"

namespace aludel {
namespace {

using Row = std::vector<std::string>;

std::string Caption(const UpgradeResult& result) {
  return absl::StrFormat(
      "%s, then its other planes: %.1f bytes a token before the first token, %.1f after it; whole frames "
      "take "
      "%.1f. KL over the tokens read behind the first halves of %d windows of %s",
      result.format, result.base_bytes_per_token, result.upgrade_bytes_per_token,
      result.whole_bytes_per_token, result.windows, result.text);
}

std::string NameOf(const UpgradeCurve& curve) {
  if (!curve.after.has_value()) return "never";
  if (*curve.after == 0) return "at once";
  return absl::StrCat("after ", *curve.after, curve.again ? ", these read again" : "");
}

std::vector<Row> Rows(const UpgradeResult& result) {
  std::vector<Row> rows = {{"other planes come"}};
  int64_t begin = 1;
  for (const int64_t end : result.spans) {
    rows.front().push_back(absl::StrFormat("tokens %d-%d", begin, end));
    begin = end + 1;
  }
  for (const UpgradeCurve& curve : result.curves) {
    Row& row = rows.emplace_back(Row{NameOf(curve)});
    for (const double kl : curve.kl) row.push_back(absl::StrFormat("%.4f", kl));
  }
  return rows;
}

}  // namespace

std::string UpgradeMarkdown(const EvaluateReport& report) {
  std::string text;
  for (const UpgradeResult& result : report.upgrades) {
    absl::StrAppend(&text, "\n", Caption(result), ":\n\n");
    const std::vector<Row> rows = Rows(result);
    for (size_t i = 0; i < rows.size(); ++i) {
      absl::StrAppend(&text, "| ", absl::StrJoin(rows[i], " | "), " |\n");
      if (i == 0) absl::StrAppend(&text, "|", absl::StrJoin(Row(rows[i].size(), "---"), "|"), "|\n");
    }
  }
  return text;
}

std::string UpgradeHtml(const EvaluateReport& report) {
  if (report.upgrades.empty()) return "";
  std::string html = "<h2 class=\"part\">Upgrades behind the first tokens</h2>\n";
  for (const UpgradeResult& result : report.upgrades) {
    const std::vector<Row> rows = Rows(result);
    absl::StrAppend(&html, "<p>", EscapeHtml(Caption(result)),
                    ".</p>\n<div class=\"table\"><table><thead>\n");
    for (size_t i = 0; i < rows.size(); ++i) {
      const char* const cell = i == 0 ? "th" : "td";
      absl::StrAppend(&html, "<tr>");
      for (const std::string& text : rows[i]) absl::StrAppend(&html, "<", cell, ">", text, "</", cell, ">");
      absl::StrAppend(&html, "</tr>", i == 0 ? "</thead><tbody>" : "", "\n");
    }
    absl::StrAppend(&html, "</tbody></table></div>\n");
  }
  return html;
}

}  // namespace aludel
