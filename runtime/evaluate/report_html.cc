#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/evaluate/evaluate.h"
#include "runtime/evaluate/layer_plots.h"
#include "runtime/evaluate/pareto_plot.h"
#include "runtime/evaluate/plot.h"
#include "runtime/tool/html_page.h"

namespace aludel {
namespace {

constexpr char kStyle[] = R"(h2 { font-size: 1.05rem; margin: 0 0 .3rem; }
p { color: var(--soft); margin: .3rem 0 1.5rem; }
.plots { display: flex; flex-wrap: wrap; gap: 1.5rem; }
section { flex: 1 1 480px; min-width: 0; }
section p { margin-bottom: .5rem; font-size: 13px; }
svg { font: 12px system-ui, sans-serif; fill: var(--ink); }
.axis { stroke: var(--soft); }
.tick, .name { fill: var(--soft); }
.label { paint-order: stroke; stroke: var(--ground); stroke-width: 3px; }
.front { fill: none; stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 2 3; }
.level { stroke: var(--ink); stroke-dasharray: 6 4; }
.band { fill: var(--soft); opacity: .12; }
.whisker { stroke: currentColor; opacity: .6; }
circle { fill: currentColor; }
.table { overflow-x: auto; margin-top: 1.5rem; }
table { border-collapse: collapse; white-space: nowrap; font-variant-numeric: tabular-nums; font-size: 13px; }
th, td { padding: .25rem .5rem; text-align: right; border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 600; white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
small { color: var(--soft); }
h2.part { margin: 2.2rem 0 .2rem; }
.series { fill: none; stroke: currentColor; stroke-width: 1.6; opacity: .85; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(210px, 1fr)); gap: .6rem 1.2rem; }
.panels h3 { font-size: 13px; margin: .4rem 0 0; }
.panels h3 small { font-weight: 400; }
.switches { display: flex; flex-wrap: wrap; gap: .1rem .9rem; font-size: 13px; margin: .4rem 0 1rem; }
.switches label { display: flex; align-items: center; gap: .3rem; cursor: pointer; }
.switches span { color: var(--ink); }
.switches svg { width: 26px; height: 8px; }
.legend span { margin-right: 1rem; white-space: nowrap; }
.legend svg { width: 11px; height: 11px; margin-right: .35rem; }
.errors section { flex-basis: 400px; }
)";

std::string WithInterval(double value, const Interval& interval) {
  return absl::StrFormat("%.3f <small>[%.3f, %.3f]</small>", value, interval.low, interval.high);
}

// Perplexity of each text, and over the oracle's.
std::string TextTable(const EvaluateReport& report) {
  if (report.texts.empty()) return "";
  std::string head = "<h2 class=\"part\">Perplexity</h2>\n<div class=\"table\"><table>\n<tr><th>format</th>";
  std::string body = "</tr>\n<tr><td>oracle</td>";
  for (const TextResult& text : report.texts) {
    absl::StrAppend(&head, "<th>", EscapeHtml(text.name), "</th>");
    absl::StrAppendFormat(&body, "<td>%.3f</td>", text.oracle_ppl);
  }
  for (const FormatResult& f : report.formats) {
    absl::StrAppend(&body, "</tr>\n<tr><td>", EscapeHtml(f.name), "</td>");
    for (size_t i = 0; i < f.ppl.size(); ++i) {
      absl::StrAppendFormat(&body, "<td>%.3f <small>%.3fx</small></td>", f.ppl[i],
                            f.ppl[i] / report.texts[i].oracle_ppl);
    }
  }
  return absl::StrCat(head, body, "</tr>\n</table></div>\n");
}

std::string Table(const EvaluateReport& report) {
  std::string html =
      "<div class=\"table\"><table>\n<tr><th>format</th><th>bytes/token</th><th>smaller than "
      "raw</th><th>F1</th>"
      "<th>EM</th><th>KL</th><th>KL p95</th><th>TV</th><th>consumer compute</th>"
      "<th>encode tok/s</th><th>reconstruct tok/s</th></tr>\n";
  absl::StrAppendFormat(&html,
                        "<tr><td>oracle</td><td>0</td><td>-</td><td>%s</td><td>%.3f</td><td>0</td><td>0</td>"
                        "<td>0</td><td>100 %%</td><td>-</td><td>-</td></tr>\n",
                        WithInterval(report.oracle_f1, report.oracle_f1_ci95), report.oracle_em);
  for (const FormatResult& f : report.formats) {
    const bool ships = f.bytes_per_token > 0;
    absl::StrAppendFormat(
        &html,
        "<tr><td>%s</td><td>%.1f</td><td>%s</td><td>%s</td><td>%.3f</td><td>%s</td><td>%.3f</td><td>%.4f</td>"
        "<td>%.1f %%</td><td>%s</td><td>%.0f</td></tr>\n",
        EscapeHtml(f.name), f.bytes_per_token, ships ? absl::StrFormat("%.1fx", 1 / f.bytes_vs_raw) : "-",
        WithInterval(f.f1, f.f1_ci95), f.em, WithInterval(f.kl, f.kl_ci95), f.kl_p95, f.tv,
        100 * f.consumer_compute_share, ships ? absl::StrFormat("%.0f", f.encode_tokens_per_s) : "-",
        f.reconstruct_tokens_per_s);
  }
  return html + "</table></div>\n";
}

// A switched-off format leaves the drawings by layer; tables and fronts keep it.
constexpr char kSwitchScript[] = R"(<script>
for (const box of document.querySelectorAll('.switches input')) {
  box.addEventListener('change', () => {
    for (const drawn of document.querySelectorAll(`[data-format="${CSS.escape(box.value)}"]`)) {
      drawn.style.display = box.checked ? '' : 'none';
    }
  });
}
</script>
)";

std::string LayerErrors(const EvaluateReport& report) {
  const std::pair<ErrorMetric, std::pair<const char*, const char*>> plots[] = {
      {ErrorMetric::kK, {"Keys", "||K&#770; &minus; K||&sup2; / ||K||&sup2;"}},
      {ErrorMetric::kV, {"Values", "||V&#770; &minus; V||&sup2; / ||V||&sup2;"}},
      {ErrorMetric::kLogits,
       {"Attention logits", "of the consumer's own queries, centered over the keys of each query"}},
      {ErrorMetric::kOutput,
       {"Attention output", "through W<sub>o</sub>, what the residual stream receives"}}};
  std::string html = absl::StrCat(
      "<h2 class=\"part\">Reconstruction error by layer</h2><p>Squared error over energy, each layer judged "
      "for "
      "itself: the queries are the oracle's.</p>\n",
      FormatSwitches(report.formats), "<div class=\"plots errors\">\n");
  for (const auto& [metric, words] : plots) {
    absl::StrAppend(&html, "<section><h2>", words.first, "</h2><p>", words.second, "</p>\n",
                    LayerErrorSvg(report.formats, metric), "</section>\n");
  }
  return html + "</div>\n";
}

std::string Allocation(const EvaluateReport& report) {
  std::string html = absl::StrCat(
      "<h2 class=\"part\">Where the bytes go</h2><p>Bytes per prompt token by layer; each panel has its own "
      "scale. A wide bar is one code of several layers.</p>\n",
      AllocationLegend(), "<div class=\"panels\">\n");
  for (const FormatResult& format : report.formats) {
    if (format.shares.empty()) continue;
    const std::string name = EscapeHtml(format.name);
    absl::StrAppendFormat(
        &html, "<div data-format=\"%s\"><h3>%s <small>%.1f bytes/token</small></h3>\n%s</div>\n", name, name,
        format.bytes_per_token, AllocationSvg(format, static_cast<int>(format.layer_errors.size())));
  }
  return html + "</div>\n";
}

std::string Section(const ParetoPlot& plot, const char* caption) {
  return absl::StrCat("<section><h2>", plot.title, "</h2><p>", caption, "</p>\n", ParetoSvg(plot),
                      "</section>\n");
}

}  // namespace

std::string ReportHtml(const EvaluateReport& report) {
  ParetoPlot f1{.title = "Answer quality", .value_name = "F1"};
  ParetoPlot kl{.title = "Distance to the oracle",
                .value_name = "KL, nats",
                .log_value = true,
                .higher_is_better = false};
  f1.reference = PlotPoint{"oracle", 0, report.oracle_f1, report.oracle_f1_ci95};
  for (const FormatResult& f : report.formats) {
    f1.points.push_back({f.name, f.bytes_per_token, f.f1, f.f1_ci95});
    kl.points.push_back({f.name, f.bytes_per_token, f.kl, f.kl_ci95});
  }
  std::string html = absl::StrFormat(
      "<p>%d questions, %d prompt tokens (all but the last of each handed over), %d oracle answer tokens, %s "
      "arithmetic. F1 and exact match as in SQuAD; KL(oracle || format) over the oracle's answer tokens; "
      "intervals are 95 %% bootstrap.</p>\n<div class=\"plots\">\n",
      report.questions, report.prompt_tokens, report.answer_tokens, report.compute);
  absl::StrAppend(
      &html,
      Section(f1, "Up and left is better. Dotted: the Pareto front. Dashed: the consumer's local prefill."),
      Section(kl, "Down and left is better. Dotted: the Pareto front."), "</div>\n", Table(report),
      TextTable(report), LayerErrors(report), Allocation(report), kSwitchScript);
  return RenderPage({.title = absl::StrCat(report.producer, " \u2192 ", report.consumer),
                     .width = "1180px",
                     .style = kStyle,
                     .body = std::move(html)});
}

}  // namespace aludel
