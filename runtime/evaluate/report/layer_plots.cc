#include "runtime/evaluate/report/layer_plots.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/evaluate/report/plot.h"
#include "runtime/tool/html_page.h"

namespace aludel {
namespace {

constexpr double kWidth = 420, kHeight = 250;
constexpr double kLeft = 52, kRight = 408, kTop = 10, kBottom = 206;
constexpr double kZeroSlot = 26;  // below a logarithmic axis

// From the bottom of a stack to its top.
constexpr std::array<std::pair<const char*, const char*>, 6> kParts = {{{"K", "#0072b2"},
                                                                        {"V", "#56b4e9"},
                                                                        {"H", "#009e73"},
                                                                        {"x", "#e69f00"},
                                                                        {"code", "#cc79a7"},
                                                                        {"header", "#888888"}}};

double Value(const LayerError& error, ErrorMetric metric) {
  switch (metric) {
    case ErrorMetric::kK:
      return error.k.ratio();
    case ErrorMetric::kV:
      return error.v.ratio();
    case ErrorMetric::kLogits:
      return error.logits.ratio();
    case ErrorMetric::kOutput:
      return error.output.ratio();
  }
  return 0;
}

std::string Line(double x0, double y0, double x1, double y1, const char* style) {
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x0, y0, x1,
                         y1, style);
}

std::string Text(double x, double y, const char* anchor, const char* style, const std::string& text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" class=\"%s\">%s</text>\n", x, y,
                         anchor, style, EscapeHtml(text));
}

// At most about ten of them.
int LayerStep(int layers) { return std::max(1, (layers + 9) / 10); }

std::string ErrorFrame(const PlotAxis& x, const PlotAxis& y, int layers, bool has_zero) {
  std::string svg;
  for (const double tick : y.ticks) {
    absl::StrAppend(&svg, Line(kLeft, y.At(tick), kRight, y.At(tick), "grid"),
                    Text(kLeft - 6, y.At(tick) + 4, "end", "tick", absl::StrFormat("%g", tick)));
  }
  if (has_zero) absl::StrAppend(&svg, Text(kLeft - 6, y.zero + 4, "end", "tick", "0"));
  for (int layer = 0; layer < layers; layer += LayerStep(layers)) {
    absl::StrAppend(&svg, Text(x.At(layer), kBottom + 16, "middle", "tick", absl::StrCat(layer)));
  }
  absl::StrAppend(&svg, Line(kLeft, kBottom, kRight, kBottom, "axis"),
                  Line(kLeft, kTop, kLeft, kBottom, "axis"),
                  Text((kLeft + kRight) / 2, kBottom + 36, "middle", "name", "layer"));
  return svg;
}

}  // namespace

std::string LayerErrorSvg(const std::vector<FormatResult>& formats, ErrorMetric metric) {
  std::vector<double> values;
  std::vector<std::string> names;
  size_t layers = 0;
  for (const FormatResult& format : formats) {
    names.push_back(format.name);
    layers = std::max(layers, format.layer_errors.size());
    for (const LayerError& error : format.layer_errors) values.push_back(Value(error, metric));
  }
  const bool has_zero = std::any_of(values.begin(), values.end(), [](double value) { return value <= 0; });
  PlotAxis y = LogAxis(values);
  y.begin = has_zero ? kBottom - kZeroSlot : kBottom;
  y.end = kTop;
  y.zero = kBottom - kZeroSlot / 3;
  PlotAxis x;
  x.high = std::max<double>(1, static_cast<double>(layers) - 1);
  x.begin = kLeft + 14;
  x.end = kRight - 14;
  const std::vector<SeriesStyle> styles = StyleSeries(names);
  std::string svg = absl::StrFormat("<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n", kWidth, kHeight);
  absl::StrAppend(&svg, ErrorFrame(x, y, static_cast<int>(layers), has_zero));
  for (size_t i = 0; i < formats.size(); ++i) {
    std::string path, dots;
    for (size_t layer = 0; layer < formats[i].layer_errors.size(); ++layer) {
      const double value = Value(formats[i].layer_errors[layer], metric);
      const double px = x.At(static_cast<double>(layer)), py = y.At(value);
      absl::StrAppendFormat(&path, "%s%.1f %.1f", path.empty() ? "M" : "L", px, py);
      absl::StrAppendFormat(
          &dots, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\"><title>%s, layer %d: %.3g</title></circle>", px, py,
          EscapeHtml(formats[i].name), layer, value);
    }
    absl::StrAppendFormat(&svg,
                          "<g data-format=\"%s\" color=\"%s\"><path d=\"%s\" class=\"series\" "
                          "stroke-dasharray=\"%s\"/>%s</g>\n",
                          EscapeHtml(formats[i].name), styles[i].color, path, styles[i].dashes, dots);
  }
  return svg + "</svg>\n";
}

std::string AllocationSvg(const FormatResult& format, int layers) {
  constexpr double kPanelWidth = 280, kPanelHeight = 150, kX0 = 46, kX1 = 272, kY0 = 122, kY1 = 10;
  // Heights of the stacks so far, per layer.
  std::vector<double> height(layers, 0.0);
  for (const Share& share : format.shares) {
    for (int layer = share.first_layer; layer < share.first_layer + share.layers; ++layer) {
      height[layer] += share.bytes / share.layers;
    }
  }
  const double most = std::max(1e-9, *std::max_element(height.begin(), height.end()));
  std::fill(height.begin(), height.end(), 0.0);
  const double slot = (kX1 - kX0) / layers, unit = (kY0 - kY1) / most;
  std::string svg =
      absl::StrFormat("<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\">\n", kPanelWidth, kPanelHeight);
  for (const auto& [part, color] : kParts) {
    for (const Share& share : format.shares) {
      if (share.part != part) continue;
      const double tall = share.bytes / share.layers;
      const double base = *std::max_element(height.begin() + share.first_layer,
                                            height.begin() + share.first_layer + share.layers);
      const double gap = std::min(2.0, slot * 0.1);
      absl::StrAppendFormat(
          &svg,
          "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"><title>%s</title></rect>\n",
          kX0 + slot * share.first_layer + gap, kY0 - (base + tall) * unit, slot * share.layers - 2 * gap,
          tall * unit, color,
          share.layers == 1
              ? absl::StrFormat("layer %d, %s: %.2f bytes/token", share.first_layer, part, share.bytes)
              : absl::StrFormat("layers %d to %d, %s: %.2f bytes/token", share.first_layer,
                                share.first_layer + share.layers - 1, part, share.bytes));
      std::fill_n(height.begin() + share.first_layer, share.layers, base + tall);
    }
  }
  absl::StrAppend(&svg, Line(kX0, kY0, kX1, kY0, "axis"), Line(kX0, kY0, kX0, kY1, "axis"),
                  Text(kX0 - 5, kY1 + 8, "end", "tick", absl::StrFormat("%.3g", most)),
                  Text(kX0 - 5, kY0 + 4, "end", "tick", "0"));
  for (int layer = 0; layer < layers; layer += LayerStep(layers)) {
    absl::StrAppend(&svg, Text(kX0 + slot * (layer + 0.5), kY0 + 16, "middle", "tick", absl::StrCat(layer)));
  }
  return svg + "</svg>\n";
}

std::string FormatSwitches(const std::vector<FormatResult>& formats) {
  std::vector<std::string> names;
  for (const FormatResult& format : formats) names.push_back(format.name);
  const std::vector<SeriesStyle> styles = StyleSeries(names);
  std::string html = "<div class=\"switches\">";
  for (size_t i = 0; i < names.size(); ++i) {
    absl::StrAppendFormat(
        &html,
        "<label><input type=\"checkbox\" checked value=\"%s\"><svg color=\"%s\" "
        "viewBox=\"0 0 26 8\"><path d=\"M0 4H26\" class=\"series\" stroke-dasharray=\"%s\"/>"
        "</svg><span>%s</span></label>\n",
        EscapeHtml(names[i]), styles[i].color, styles[i].dashes, EscapeHtml(names[i]));
  }
  return html + "</div>\n";
}

std::string AllocationLegend() {
  static const std::map<std::string, std::string> kMeanings = {{"K", "keys"},
                                                               {"V", "values"},
                                                               {"H", "attention input"},
                                                               {"x", "residual stream"},
                                                               {"code", "code of K and V together"},
                                                               {"header", "frame headers"}};
  std::string html = "<p class=\"legend\">";
  for (const auto& [part, color] : kParts) {
    absl::StrAppendFormat(
        &html, "<span><svg viewBox=\"0 0 1 1\"><rect width=\"1\" height=\"1\" fill=\"%s\"/></svg>%s</span> ",
        color, kMeanings.at(part));
  }
  return html + "</p>\n";
}

}  // namespace aludel
