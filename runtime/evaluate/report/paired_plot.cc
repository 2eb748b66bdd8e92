#include "runtime/evaluate/report/paired_plot.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/evaluate/report/plot.h"
#include "runtime/tool/html_page.h"

namespace aludel {
namespace {

constexpr double kWidth = 620, kLeft = 130, kRight = 600, kRow = 24, kTop = 8;

}  // namespace

std::string PairedSvg(const EvaluateReport& report) {
  double low = -0.01, high = 0.01;
  std::vector<std::string> names;
  for (const FormatResult& f : report.formats) {
    low = std::min(low, f.f1_loss_ci95.low);
    high = std::max(high, f.f1_loss_ci95.high);
    names.push_back(f.name);
  }
  const auto x = [&](double loss) { return kLeft + (loss - low) / (high - low) * (kRight - kLeft); };
  const double bottom = kTop + kRow * static_cast<double>(names.size());
  std::string svg = absl::StrFormat(
      "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"F1 lost to local prefill\">\n", kWidth,
      bottom + 40);
  const std::vector<SeriesStyle> styles = StyleSeries(names);
  for (size_t i = 0; i < names.size(); ++i) {
    const FormatResult& f = report.formats[i];
    const double y = kTop + kRow * (static_cast<double>(i) + 0.5), loss = report.oracle_f1 - f.f1;
    const std::string name = EscapeHtml(f.name);
    absl::StrAppendFormat(
        &svg,
        "<g data-of=\"%s\"><text x=\"%.0f\" y=\"%.1f\" text-anchor=\"end\">%s</text><g color=\"%s\">"
        "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"whisker\"/>"
        "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\"><title>%s: %.4f [%.4f, %.4f]</title></circle></g></g>\n",
        name, kLeft - 10, y + 4, name, styles[i].color, x(f.f1_loss_ci95.low), y, x(f.f1_loss_ci95.high), y,
        x(loss), y, name, loss, f.f1_loss_ci95.low, f.f1_loss_ci95.high);
  }
  absl::StrAppendFormat(&svg, "<line x1=\"%.1f\" y1=\"%.0f\" x2=\"%.1f\" y2=\"%.1f\" class=\"level\"/>\n",
                        x(0), kTop, x(0), bottom);
  for (const double tick : {low, 0.0, high}) {
    absl::StrAppendFormat(&svg,
                          "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" class=\"tick\">%.2g</text>\n",
                          x(tick), bottom + 18, tick);
  }
  return svg + "</svg>\n";
}

}  // namespace aludel
