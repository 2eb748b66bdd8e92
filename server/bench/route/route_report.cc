#include "server/bench/route/route_report.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/evaluate/report/plot.h"
#include "runtime/evaluate/score.h"
#include "runtime/tool/html_page.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

constexpr double kWidth = 700, kHeight = 360;
constexpr double kLeft = 56, kRight = 600, kTop = 12, kBottom = 312;
constexpr size_t kCurvePoints = 300;

double Round(double x) { return std::round(x * 1e4) / 1e4; }

double Within(const SimResult& run, double objective) {
  const auto good =
      std::count_if(run.ttft.begin(), run.ttft.end(), [=](double ttft) { return ttft <= objective; });
  return static_cast<double>(good) / static_cast<double>(run.ttft.size());
}

ordered_json Summarize(const RouteRuns& policy, double objective) {
  std::vector<double> share, p50, p90, p99, hits, imbalance, decision_p50, decision_p99;
  ordered_json reasons = ordered_json::object();
  int64_t retried = 0, turned_away = 0, moved = 0;
  for (const SimResult& run : policy.runs) {
    share.push_back(Within(run, objective));
    p50.push_back(Percentile(run.ttft, .5));
    p90.push_back(Percentile(run.ttft, .9));
    p99.push_back(Percentile(run.ttft, .99));
    hits.push_back(static_cast<double>(run.cached_tokens) /
                   static_cast<double>(std::max<int64_t>(1, run.prompt_tokens)));
    imbalance.push_back(run.imbalance);
    decision_p50.push_back(Percentile(run.decision_micros, .5));
    decision_p99.push_back(Percentile(run.decision_micros, .99));
    retried += run.retried;
    turned_away += run.turned_away;
    moved += run.moved;
    for (const auto& [reason, count] : run.reasons)
      reasons[reason] = reasons.value(reason, int64_t{0}) + count;
  }
  return {{"policy", policy.policy},
          {"seeds", policy.runs.size()},
          {"within_objective", Round(Mean(share))},
          {"within_objective_least", Round(*std::min_element(share.begin(), share.end()))},
          {"within_objective_most", Round(*std::max_element(share.begin(), share.end()))},
          {"ttft_s", {{"p50", Round(Mean(p50))}, {"p90", Round(Mean(p90))}, {"p99", Round(Mean(p99))}}},
          {"hits", Round(Mean(hits))},
          {"imbalance", Round(Mean(imbalance))},
          {"decision_us", {{"p50", Round(Mean(decision_p50))}, {"p99", Round(Mean(decision_p99))}}},
          {"retried", retried},
          {"turned_away", turned_away},
          {"moved", moved},
          {"reasons", std::move(reasons)}};
}

std::string Svg(const std::vector<RouteRuns>& policies) {
  std::vector<std::vector<double>> curves;
  std::vector<double> all;
  std::vector<std::string> labels;
  for (const RouteRuns& policy : policies) {
    std::vector<double> ttft;
    for (const SimResult& run : policy.runs) ttft.insert(ttft.end(), run.ttft.begin(), run.ttft.end());
    std::sort(ttft.begin(), ttft.end());
    all.insert(all.end(), {ttft.front(), ttft.back()});
    labels.push_back(policy.policy);
    curves.push_back(std::move(ttft));
  }
  PlotAxis x = LogAxis(all);
  x.begin = x.zero = kLeft;
  x.end = kRight;
  const std::vector<SeriesStyle> styles = StyleSeries(labels);
  std::string svg = absl::StrFormat(
      "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"share of requests below a time to first "
      "token\">\n",
      kWidth, kHeight);
  const auto text = [&svg](double at_x, double at_y, const char* anchor, const std::string& what) {
    absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", at_x, at_y,
                          anchor, EscapeHtml(what));
  };
  const auto y = [](double share) { return kBottom - share * (kBottom - kTop); };
  const auto grid = [&svg](double x0, double y0, double x1, double y1) {
    absl::StrAppendFormat(&svg, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"grid\"/>\n",
                          x0, y0, x1, y1);
  };
  for (const double tick : x.ticks) {
    grid(x.At(tick), kTop, x.At(tick), kBottom);
    text(x.At(tick), kBottom + 18, "middle", absl::StrFormat("%g", tick));
  }
  for (const double share : {0.0, .25, .5, .75, .9, 1.0}) {
    grid(kLeft, y(share), kRight, y(share));
    text(kLeft - 8, y(share) + 4, "end", absl::StrFormat("%.0f %%", share * 100));
  }
  text((kLeft + kRight) / 2, kBottom + 40, "middle", "time to first token, seconds");
  for (size_t i = 0; i < curves.size(); ++i) {
    std::string path;
    for (size_t point = 0; point < kCurvePoints; ++point) {
      const size_t at = point * (curves[i].size() - 1) / (kCurvePoints - 1);
      absl::StrAppendFormat(&path, "%s%.1f %.1f", path.empty() ? "M" : "L", x.At(curves[i][at]),
                            y(static_cast<double>(at + 1) / static_cast<double>(curves[i].size())));
    }
    absl::StrAppendFormat(&svg, "<path d=\"%s\" stroke=\"%s\" stroke-dasharray=\"%s\"/>\n", path,
                          styles[i].color, styles[i].dashes);
    const double at = kTop + 14 + 18 * static_cast<double>(i);
    absl::StrAppendFormat(&svg, "<path d=\"M%.1f %.1fh22\" stroke=\"%s\" stroke-dasharray=\"%s\"/>\n",
                          kRight + 8, at - 4, styles[i].color, styles[i].dashes);
    text(kRight + 34, at, "start", labels[i]);
  }
  return svg + "</svg>\n";
}

constexpr char kStyle[] = R"(svg text { fill: var(--soft); font-size: 12px; } svg { overflow: visible; }
path { fill: none; stroke-width: 2; } .grid { stroke: var(--line); }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { padding: .2rem .9rem .2rem 0; text-align: right; font-variant-numeric: tabular-nums; }
td:first-child, th:first-child { text-align: left; } th { color: var(--soft); font-weight: 400; }
)";

}  // namespace

ordered_json SummarizeRoutes(const std::vector<RouteRuns>& policies, double objective_seconds) {
  ordered_json summary = {{"objective_s", objective_seconds}, {"policies", ordered_json::array()}};
  for (const RouteRuns& policy : policies)
    summary["policies"].push_back(Summarize(policy, objective_seconds));
  return summary;
}

std::string DescribeRoutes(const ordered_json& summary) {
  std::string text =
      absl::StrFormat("%-17s %22s %8s %8s %8s %6s %9s %12s %8s\n", "policy",
                      absl::StrFormat("TTFT <= %g s", summary["objective_s"].get<double>()), "p50 s", "p90 s",
                      "p99 s", "hits", "imbalance", "decision p99", "retried");
  for (const ordered_json& row : summary["policies"]) {
    absl::StrAppendFormat(&text, "%-17s %7.3f (%.3f - %.3f) %8.2f %8.2f %8.2f %6.3f %9.2f %9.1f us %8d\n",
                          row["policy"].get<std::string>(), row["within_objective"].get<double>(),
                          row["within_objective_least"].get<double>(),
                          row["within_objective_most"].get<double>(), row["ttft_s"]["p50"].get<double>(),
                          row["ttft_s"]["p90"].get<double>(), row["ttft_s"]["p99"].get<double>(),
                          row["hits"].get<double>(), row["imbalance"].get<double>(),
                          row["decision_us"]["p99"].get<double>(), row["retried"].get<int64_t>());
  }
  return text;
}

std::string RouteHtml(const ordered_json& summary, const std::vector<RouteRuns>& policies,
                      const std::string& title) {
  std::string html = absl::StrFormat(
      "%s<table><tr><th>policy</th><th>within %g s</th><th>p50 s</th><th>p90 s</th><th>p99 "
      "s</th><th>hits</th>"
      "<th>imbalance</th></tr>\n",
      Svg(policies), summary["objective_s"].get<double>());
  for (const ordered_json& row : summary["policies"]) {
    absl::StrAppendFormat(&html,
                          "<tr><td>%s</td><td>%.3f</td><td>%.2f</td><td>%.2f</td><td>%.2f</td><td>%.3f</td>"
                          "<td>%.2f</td></tr>\n",
                          EscapeHtml(row["policy"].get<std::string>()), row["within_objective"].get<double>(),
                          row["ttft_s"]["p50"].get<double>(), row["ttft_s"]["p90"].get<double>(),
                          row["ttft_s"]["p99"].get<double>(), row["hits"].get<double>(),
                          row["imbalance"].get<double>());
  }
  html += "</table>\n";
  return RenderPage({.title = title, .width = "52rem", .style = kStyle, .body = std::move(html)});
}

}  // namespace aludel
