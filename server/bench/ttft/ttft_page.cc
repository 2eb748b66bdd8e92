#include "server/bench/ttft/ttft_page.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "runtime/evaluate/report/plot.h"
#include "runtime/tool/html_page.h"

namespace aludel {
namespace {

constexpr double kWidth = 460, kHeight = 320;
constexpr double kLeft = 62, kRight = 448, kTop = 10, kBottom = 272;

constexpr char kStyle[] =
    R"(h2 { font-size: 1.05rem; margin: 1.5rem 0 .3rem; } figcaption { color: var(--soft); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); gap: 1rem; } figure { margin: 0; }
svg text { fill: var(--soft); font-size: 12px; }
.series path { fill: none; stroke: currentColor; stroke-width: 2; } .series line { stroke: currentColor; }
.series circle { fill: currentColor; } .key { margin-right: 1.2rem; white-space: nowrap; }
.key svg { width: 2.2em; height: .8em; margin-right: .4em; } pre { overflow-x: auto; font-size: 12px; }
)";

constexpr char kIntroduction[] =
    R"(<p>Seconds from the request to the first token at the client: medians, with bars from the
least to the most. "cold": the prefill server has never seen the prompt. "warm": it has all of its frames cached. Both
axes are logarithmic.</p>
)";

struct Point {
  double x;
  TtftSpread seconds;
};

struct Series {
  std::string name;
  std::vector<Point> points;  // by x
};

std::string SeriesName(const TtftRow& row) {
  return row.state == TtftState::kLocal ? row.format
                                        : absl::StrCat(row.format, ", ", TtftStateName(row.state));
}

// All series of the page, in the order of the rows: each has one style in every plot.
std::vector<std::string> SeriesNames(const std::vector<TtftRow>& rows) {
  std::vector<std::string> names;
  for (const TtftRow& row : rows) {
    const std::string name = SeriesName(row);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

// A color for each format, dashes for its states: what StyleSeries() does of labels "FORMAT-STATE".
std::vector<SeriesStyle> StylesOf(const std::vector<std::string>& names) {
  std::vector<std::string> labels;
  for (const std::string& name : names)
    labels.push_back(absl::StrReplaceAll(name, {{"-", "_"}, {", ", "-"}}));
  std::vector<SeriesStyle> styles = StyleSeries(labels);
  for (size_t i = 0; i < names.size(); ++i)
    styles[i].dashes = absl::EndsWith(names[i], "cold") ? "6 3" : "none";
  return styles;
}

std::vector<Series> SeriesOf(const std::vector<TtftRow>& rows, const std::vector<std::string>& names,
                             const std::function<bool(const TtftRow&)>& wanted,
                             const std::function<double(const TtftRow&)>& x) {
  std::vector<Series> all;
  for (const std::string& name : names) {
    Series series{.name = name};
    for (const TtftRow& row : rows) {
      if (SeriesName(row) != name || row.samples.empty() || !wanted(row)) continue;
      series.points.push_back({x(row), SpreadOf(row.samples)});
    }
    std::sort(series.points.begin(), series.points.end(),
              [](const Point& a, const Point& b) { return a.x < b.x; });
    all.push_back(std::move(series));
  }
  return all;
}

std::string Line(double x0, double y0, double x1, double y1, const char* style) {
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\"/>\n", x0, y0, x1,
                         y1, style);
}

std::string Text(double x, double y, const char* anchor, const std::string& text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor,
                         EscapeHtml(text));
}

std::string DrawSeries(const Series& series, const SeriesStyle& style, const PlotAxis& x, const PlotAxis& y) {
  std::string path, marks;
  for (const Point& point : series.points) {
    const double at_x = x.At(point.x), at_y = y.At(point.seconds.median);
    absl::StrAppendFormat(&path, "%s%.1f %.1f", path.empty() ? "M" : "L", at_x, at_y);
    absl::StrAppend(
        &marks, Line(at_x, y.At(point.seconds.least), at_x, y.At(point.seconds.most), "whisker"),
        absl::StrFormat("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"><title>%s: %.4g s [%.4g, %.4g]</title>"
                        "</circle>\n",
                        at_x, at_y, EscapeHtml(series.name), point.seconds.median, point.seconds.least,
                        point.seconds.most));
  }
  if (path.empty()) return "";
  return absl::StrFormat(
      "<g class=\"series\" color=\"%s\"><path d=\"%s\" stroke-dasharray=\"%s\"/>\n%s</g>\n", style.color,
      path, style.dashes, marks);
}

// `x_name` says what stands along the bottom; `tick` writes one of its values.
std::string Plot(const std::string& title, const std::vector<Series>& all,
                 const std::vector<SeriesStyle>& styles, const std::string& x_name,
                 const std::function<std::string(double)>& tick) {
  std::vector<double> xs, seconds;
  for (const Series& series : all) {
    for (const Point& point : series.points) {
      xs.push_back(point.x);
      seconds.insert(seconds.end(), {point.seconds.least, point.seconds.most});
    }
  }
  PlotAxis x = LogAxis(xs), y = LogAxis(seconds);
  x.begin = x.zero = kLeft;
  x.end = kRight;
  y.begin = y.zero = kBottom;
  y.end = kTop;
  std::sort(xs.begin(), xs.end());
  xs.erase(std::unique(xs.begin(), xs.end()), xs.end());
  std::string svg = absl::StrFormat(
      "<figure><figcaption>%s</figcaption>\n<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" "
      "aria-label=\"time to first token, %s\">\n",
      EscapeHtml(title), kWidth, kHeight, EscapeHtml(title));
  for (const double value : xs) {  // what was measured, and nothing between
    absl::StrAppend(&svg, Line(x.At(value), kTop, x.At(value), kBottom, "grid"),
                    Text(x.At(value), kBottom + 18, "middle", tick(value)));
  }
  for (const double value : y.ticks) {
    absl::StrAppend(&svg, Line(kLeft, y.At(value), kRight, y.At(value), "grid"),
                    Text(kLeft - 8, y.At(value) + 4, "end", absl::StrFormat("%g s", value)));
  }
  absl::StrAppend(&svg, Text((kLeft + kRight) / 2, kBottom + 40, "middle", x_name));
  for (size_t i = 0; i < all.size(); ++i) absl::StrAppend(&svg, DrawSeries(all[i], styles[i], x, y));
  return svg + "</svg></figure>\n";
}

std::string Key(const std::vector<std::string>& names, const std::vector<SeriesStyle>& styles) {
  std::string text = "<p>";
  for (size_t i = 0; i < names.size(); ++i) {
    absl::StrAppendFormat(
        &text,
        "<span class=\"key\"><svg viewBox=\"0 0 30 10\" class=\"series\" color=\"%s\"><path "
        "d=\"M0 5L30 5\" stroke-dasharray=\"%s\"/></svg>%s</span>\n",
        styles[i].color, styles[i].dashes, EscapeHtml(names[i]));
  }
  return text + "</p>\n";
}

template <typename Value>
std::vector<Value> Distinct(const std::vector<TtftRow>& rows, Value TtftRow::*field) {
  std::vector<Value> values;
  for (const TtftRow& row : rows) values.push_back(row.*field);
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  return values;
}

}  // namespace

std::string TtftHtml(const std::vector<TtftRow>& rows, const std::string& title) {
  const std::vector<std::string> names = SeriesNames(rows);
  const std::vector<SeriesStyle> styles = StylesOf(names);
  std::string html = kIntroduction + Key(names, styles);
  absl::StrAppend(&html, "<h2>Against the prompt's length</h2>\n<div class=\"plots\">\n");
  for (const double link : Distinct(rows, &TtftRow::link)) {
    const auto all = SeriesOf(
        rows, names, [link](const TtftRow& row) { return row.link == link; },
        [](const TtftRow& row) { return static_cast<double>(row.tokens); });
    absl::StrAppend(&html, Plot(LinkName(link), all, styles, "prompt tokens",
                                [](double value) { return absl::StrFormat("%g", value); }));
  }
  absl::StrAppend(&html, "</div>\n<h2>Against the link's rate</h2>\n<div class=\"plots\">\n");
  for (const int64_t tokens : Distinct(rows, &TtftRow::tokens)) {
    const auto all = SeriesOf(
        rows, names, [tokens](const TtftRow& row) { return row.tokens == tokens && row.link > 0; },
        [](const TtftRow& row) { return row.link; });
    absl::StrAppend(&html, Plot(absl::StrCat(tokens, " tokens"), all, styles, "rate of the link", LinkName));
  }
  absl::StrAppend(
      &html,
      "</div>\n<h2>All figures</h2>\n<p>Milliseconds; the stages are those of the median request.</p>\n",
      "<pre>", EscapeHtml(TtftTable(rows)), "</pre>\n");
  return RenderPage({.title = title, .width = "64rem", .style = kStyle, .body = std::move(html)});
}

}  // namespace aludel
