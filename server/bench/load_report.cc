#include "server/bench/load_report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/evaluate/report/plot.h"
#include "runtime/evaluate/score.h"
#include "runtime/tool/html_page.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

constexpr double kWidth = 620, kHeight = 360;
constexpr double kLeft = 56, kRight = 604, kTop = 12, kBottom = 312;
constexpr size_t kMaxCurvePoints = 400;
// Errors may name their request, and then all differ.
constexpr size_t kMaxErrorKinds = 20;

double Milliseconds(double seconds) { return std::round(seconds * 1e6) / 1e3; }

ordered_json Distribution(const std::vector<double>& seconds) {
  ordered_json json = {{"count", seconds.size()}};
  if (seconds.empty()) return json;
  json["mean"] = Milliseconds(Mean(seconds));
  for (const auto& [name, fraction] :
       {std::pair{"p50", .5}, {"p90", .9}, {"p95", .95}, {"p99", .99}, {"max", 1.0}}) {
    json[name] = Milliseconds(Percentile(seconds, fraction));
  }
  return json;
}

// Groups errors that differ in numbers only; a leading HTTP status is kept.
std::string KindOf(absl::string_view error) {
  std::string kind(error.substr(0, absl::StartsWith(error, "HTTP ") ? 8 : 0));
  for (const char c : error.substr(kind.size())) {
    if (!absl::ascii_isdigit(static_cast<unsigned char>(c))) {
      kind += c;
    } else if (!absl::EndsWith(kind, "#")) {
      kind += '#';
    }
  }
  return kind;
}

bool IsGood(const LoadResult& result, const LoadObjective& objective) {
  const auto within = [](double seconds, double bound_ms) {
    return bound_ms <= 0 || seconds * 1e3 <= bound_ms;
  };
  return result.ok() && within(result.ttft, objective.ttft_ms) && within(result.e2e, objective.e2e_ms) &&
         within(Mean(result.inter_token), objective.inter_token_ms);
}

struct Curve {
  const char* name;
  const char* style;
  std::vector<double> seconds;
};

std::vector<Curve> Curves(const std::vector<LoadResult>& results) {
  std::vector<Curve> curves = {
      {"time to first token", "ttft", {}}, {"between tokens", "itl", {}}, {"whole request", "e2e", {}}};
  for (const LoadResult& result : results) {
    if (!result.ok()) continue;
    curves[0].seconds.push_back(result.ttft);
    curves[1].seconds.insert(curves[1].seconds.end(), result.inter_token.begin(), result.inter_token.end());
    curves[2].seconds.push_back(result.e2e);
  }
  for (Curve& curve : curves) std::sort(curve.seconds.begin(), curve.seconds.end());
  return curves;
}

std::string Svg(const std::vector<LoadResult>& results) {
  const std::vector<Curve> curves = Curves(results);
  std::vector<double> all;
  for (const Curve& curve : curves) {
    if (!curve.seconds.empty())
      all.insert(all.end(), {curve.seconds.front() * 1e3, curve.seconds.back() * 1e3});
  }
  PlotAxis x = LogAxis(all);
  x.begin = kLeft;
  x.end = kRight;
  x.zero = kLeft;
  std::string svg = absl::StrFormat(
      "<svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"share of requests below a latency\">\n",
      kWidth, kHeight);
  const auto text = [&svg](double at_x, double at_y, const char* anchor, const std::string& what) {
    absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", at_x, at_y,
                          anchor, EscapeHtml(what));
  };
  const auto line = [&svg](double x0, double y0, double x1, double y1) {
    absl::StrAppendFormat(&svg, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"grid\"/>\n",
                          x0, y0, x1, y1);
  };
  const auto y = [](double share) { return kBottom - share * (kBottom - kTop); };
  for (const double tick : x.ticks) {
    line(x.At(tick), kTop, x.At(tick), kBottom);
    text(x.At(tick), kBottom + 18, "middle", absl::StrFormat("%g", tick));
  }
  for (const double share : {0.0, .25, .5, .75, .9, 1.0}) {
    line(kLeft, y(share), kRight, y(share));
    text(kLeft - 8, y(share) + 4, "end", absl::StrFormat("%.0f %%", share * 100));
  }
  text((kLeft + kRight) / 2, kBottom + 40, "middle", "milliseconds");
  for (const Curve& curve : curves) {
    std::string path;
    const size_t count = curve.seconds.size();
    const size_t points = std::min(count, kMaxCurvePoints);
    for (size_t i = 0; i < points; ++i) {
      const size_t at = points == 1 ? 0 : i * (count - 1) / (points - 1);
      absl::StrAppendFormat(&path, "%s%.1f %.1f", path.empty() ? "M" : "L", x.At(curve.seconds[at] * 1e3),
                            y(static_cast<double>(at + 1) / static_cast<double>(count)));
    }
    absl::StrAppendFormat(&svg, "<path d=\"%s\" class=\"%s\"><title>%s</title></path>\n", path, curve.style,
                          curve.name);
  }
  return svg + "</svg>\n";
}

// How times between tokens were told where tokens did not come one by one; "" where all did.
std::string CoalescedLine(const ordered_json& summary) {
  const int64_t coalesced = summary["coalesced_pieces"].get<int64_t>();
  if (coalesced == 0) return "";
  return absl::StrFormat(
      "%d pieces of text came together with others; those of one read share the time since the read before "
      "it",
      coalesced);
}

constexpr char kStyle[] = R"(svg text { fill: var(--soft); font-size: 12px; }
path { fill: none; stroke-width: 2; } .ttft { stroke: #d9822b; } .itl { stroke: #3f8f88; } .e2e { stroke: #7a6fb0; }
b.ttft, b.itl, b.e2e { display: inline-block; width: 1.4em; height: 3px; vertical-align: middle; margin-right: .4em; }
b.ttft { background: #d9822b; } b.itl { background: #3f8f88; } b.e2e { background: #7a6fb0; }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { padding: .2rem .9rem .2rem 0; text-align: right; font-variant-numeric: tabular-nums; }
td:first-child, th:first-child { text-align: left; } th { color: var(--soft); font-weight: 400; }
)";

}  // namespace

ordered_json SummarizeLoad(const std::vector<LoadResult>& results, const LoadObjective& objective) {
  std::map<std::string, int64_t> errors;
  int64_t good = 0;
  int64_t whole = 0;
  int64_t tokens = 0;
  int64_t asked = 0, prompt = 0, answer = 0;  // tokens of whole answers
  int64_t coalesced = 0;                      // pieces of theirs that did not come alone
  double seconds = 0;                         // until the last answer ended
  for (const LoadResult& result : results) {
    good += IsGood(result, objective) ? 1 : 0;
    whole += result.ok() ? 1 : 0;
    tokens += result.completion_tokens;
    seconds = std::max(seconds, result.arrival + result.e2e);
    if (result.ok()) {
      asked += result.asked_tokens;
      prompt += result.prompt_tokens;
      answer += result.completion_tokens;
      coalesced += result.coalesced;
      continue;
    }
    const std::string kind = KindOf(result.error);
    const bool known = errors.size() < kMaxErrorKinds || errors.count(kind) > 0;
    ++errors[known ? kind : "other errors"];
  }
  const std::vector<Curve> curves = Curves(results);
  const auto mean = [whole](int64_t sum) {
    return whole > 0 ? std::round(static_cast<double>(sum) / static_cast<double>(whole) * 10) / 10 : 0.0;
  };
  const auto rate = [seconds](int64_t count) {
    return seconds > 0 ? std::round(static_cast<double>(count) / seconds * 1e3) / 1e3 : 0.0;
  };
  ordered_json json = {
      {"requests", results.size()},
      {"completed", whole},
      {"seconds", std::round(seconds * 1e3) / 1e3},
      {"requests_per_second", rate(whole)},
      {"tokens_per_second", rate(tokens)},
      {"mean_tokens",
       {{"prompt", mean(prompt)}, {"answer", mean(answer)}, {"answer_asked_for", mean(asked)}}},
      {"ttft_ms", Distribution(curves[0].seconds)},
      {"inter_token_ms", Distribution(curves[1].seconds)},
      {"coalesced_pieces", coalesced},
      {"e2e_ms", Distribution(curves[2].seconds)},
      {"objective_ms",
       {{"ttft", objective.ttft_ms}, {"inter_token", objective.inter_token_ms}, {"e2e", objective.e2e_ms}}},
      {"good", good},
      {"goodput_per_second", rate(good)},
      {"errors", errors}};
  return json;
}

std::string DescribeLoad(const ordered_json& summary) {
  std::string text =
      absl::StrFormat("%d of %d requests answered in %.1f s: %.2f requests/s, %.1f tokens/s\n",
                      summary["completed"].get<int64_t>(), summary["requests"].get<int64_t>(),
                      summary["seconds"].get<double>(), summary["requests_per_second"].get<double>(),
                      summary["tokens_per_second"].get<double>());
  const ordered_json& mean = summary["mean_tokens"];
  absl::StrAppendFormat(&text, "  %.1f prompt tokens and %.1f of at most %.1f answer tokens a request\n",
                        mean["prompt"].get<double>(), mean["answer"].get<double>(),
                        mean["answer_asked_for"].get<double>());
  for (const auto& [key, name] : {std::pair{"ttft_ms", "time to first token"},
                                  {"inter_token_ms", "between tokens"},
                                  {"e2e_ms", "whole request"}}) {
    const ordered_json& one = summary[key];
    if (one["count"] == 0) continue;
    absl::StrAppendFormat(&text, "  %-20s p50 %9.2f   p90 %9.2f   p99 %9.2f   max %9.2f ms\n", name,
                          one["p50"].get<double>(), one["p90"].get<double>(), one["p99"].get<double>(),
                          one["max"].get<double>());
  }
  if (const std::string shared = CoalescedLine(summary); !shared.empty()) {
    absl::StrAppend(&text, "  ", shared, "\n");
  }
  absl::StrAppendFormat(&text, "  goodput %.2f requests/s: %d of %d met the objective\n",
                        summary["goodput_per_second"].get<double>(), summary["good"].get<int64_t>(),
                        summary["requests"].get<int64_t>());
  for (const auto& [error, count] : summary["errors"].items()) {
    absl::StrAppendFormat(&text, "  %d failed: %s\n", count.get<int64_t>(), error);
  }
  return text;
}

std::string LoadHtml(const ordered_json& summary, const std::vector<LoadResult>& results,
                     const std::string& title) {
  std::string html = absl::StrFormat(
      "<p>%d of %d requests answered, %.2f a second; goodput %.2f a second.</p>\n%s<table>"
      "<tr><th>ms</th><th>p50</th><th>p90</th><th>p95</th><th>p99</th><th>max</th></tr>\n",
      summary["completed"].get<int64_t>(), summary["requests"].get<int64_t>(),
      summary["requests_per_second"].get<double>(), summary["goodput_per_second"].get<double>(),
      Svg(results));
  for (const auto& [key, style, name] : {std::tuple{"ttft_ms", "ttft", "time to first token"},
                                         {"inter_token_ms", "itl", "between tokens"},
                                         {"e2e_ms", "e2e", "whole request"}}) {
    absl::StrAppendFormat(&html, "<tr><td><b class=\"%s\"></b>%s</td>", style, name);
    for (const char* column : {"p50", "p90", "p95", "p99", "max"}) {
      absl::StrAppendFormat(&html, "<td>%.2f</td>", summary[key].value(column, 0.0));
    }
    html += "</tr>\n";
  }
  html += "</table>\n";
  if (const std::string shared = CoalescedLine(summary); !shared.empty()) {
    absl::StrAppend(&html, "<p>", EscapeHtml(shared), "</p>\n");
  }
  return RenderPage({.title = title, .width = "46rem", .style = kStyle, .body = std::move(html)});
}

}  // namespace aludel
