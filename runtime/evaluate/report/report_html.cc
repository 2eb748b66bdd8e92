#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "runtime/evaluate/evaluate.h"
#include "runtime/evaluate/report/layer_plots.h"
#include "runtime/evaluate/report/page/report_page.h"
#include "runtime/evaluate/report/paired_plot.h"
#include "runtime/evaluate/report/pareto_plot.h"
#include "runtime/evaluate/report/plot.h"
#include "runtime/evaluate/report/upgrade_table.h"
#include "runtime/tool/html_page.h"

namespace aludel {
namespace {

std::string WithInterval(double value, const Interval& interval) {
  return absl::StrFormat("%.3f <small>[%.3f, %.3f]</small>", value, interval.low, interval.high);
}

// Perplexity of each text, and over the oracle's.
std::string TextTable(const EvaluateReport& report) {
  if (report.texts.empty()) return "";
  std::string head =
      "<h2 class=\"part\">Perplexity</h2>\n<div class=\"table\"><table "
      "class=\"sortable\"><thead>\n<tr><th>format</th>";
  std::string body = "</tr></thead><tbody>\n<tr><td>oracle</td>";
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
  return absl::StrCat(head, body, "</tr></tbody>\n</table></div>\n");
}

std::string Table(const EvaluateReport& report) {
  std::string html =
      "<div class=\"table\"><table "
      "class=\"sortable\"><thead>\n<tr><th>format</th><th>bytes/token</th><th>smaller than "
      "raw</th><th>F1</th><th>F1 lost</th>"
      "<th>EM</th><th>KL</th><th>KL p95</th><th>TV</th><th>consumer compute</th>"
      "<th>encode tok/s</th><th>reconstruct tok/s</th></tr></thead><tbody>\n";
  absl::StrAppendFormat(
      &html,
      "<tr><td>oracle</td><td>0</td><td>-</td><td>%s</td><td>0</td><td>%.3f</td><td>0</td><td>0</td>"
      "<td>0</td><td>100 %%</td><td>-</td><td>-</td></tr>\n",
      WithInterval(report.oracle_f1, report.oracle_f1_ci95), report.oracle_em);
  for (const FormatResult& f : report.formats) {
    const bool ships = f.bytes_per_token > 0;
    absl::StrAppendFormat(
        &html,
        "<tr "
        "data-of=\"%s\"><td>%s</td><td>%.1f</td><td>%s</td><td>%s</td><td>%s</td><td>%.3f</td><td>%s</"
        "td><td>%.3f</td><td>%.4f</td>"
        "<td>%.1f %%</td><td>%s</td><td>%.0f</td></tr>\n",
        EscapeHtml(f.name), EscapeHtml(f.name), f.bytes_per_token,
        ships && f.bytes_vs_raw < 0.95 ? absl::StrFormat("%.1fx", 1 / f.bytes_vs_raw) : "-",
        WithInterval(f.f1, f.f1_ci95), WithInterval(report.oracle_f1 - f.f1, f.f1_loss_ci95), f.em,
        WithInterval(f.kl, f.kl_ci95), f.kl_p95, f.tv, 100 * f.consumer_compute_share,
        ships ? absl::StrFormat("%.0f", f.encode_tokens_per_s) : "-", f.reconstruct_tokens_per_s);
  }
  return html + "</tbody></table></div>\n";
}

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

std::string Sentences(const EvaluateReport& report) {
  std::string html;
  const char* style = "verdict";
  for (const std::string& sentence : Verdict(report)) {
    absl::StrAppend(&html, "<p class=\"", style, "\">", EscapeHtml(sentence), "</p>\n");
    style = "warning";
  }
  for (const std::string& warning : LossWarnings(report)) {
    absl::StrAppend(&html, "<p class=\"warning\">", EscapeHtml(warning), "</p>\n");
  }
  return html;
}

// For the script: a data block, which no policy has to allow. Without "<" nothing in it can end it.
std::string DataBlock(const EvaluateReport& report) {
  return absl::StrCat("<script id=\"data\" type=\"application/json\">\n",
                      absl::StrReplaceAll(ReportJson(report), {{"<", "\\u003c"}}), "</script>\n");
}

std::string Provenance(const EvaluateReport& report) {
  if (report.command.empty()) return "";
  return absl::StrCat("<footer><p><code>", EscapeHtml(report.command), "</code></p>\n<p>",
                      EscapeHtml(report.machine), ", ", EscapeHtml(report.date), "</p></footer>\n");
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
  std::string html = Sentences(report);
  absl::StrAppendFormat(
      &html,
      "<p>%d questions, %d prompt tokens (all but the last of each handed over), %d oracle answer tokens, %s "
      "arithmetic, %s caches (the oracle's is bf16). F1 and exact match as in SQuAD; KL(oracle || format) "
      "over the oracle's answer tokens; "
      "intervals are 95 %% bootstrap.</p>\n<div class=\"plots\">\n",
      report.questions, report.prompt_tokens, report.answer_tokens, report.compute, report.kv_dtype);
  absl::StrAppend(
      &html,
      Section(f1, "Up and left is better. Dotted: the Pareto front. Dashed: the consumer's local prefill."),
      Section(kl, "Down and left is better. Dotted: the Pareto front."),
      "<section class=\"paired\"><h2>F1 lost to local prefill, question by question</h2><p>Left of 0 a "
      "format answers better. "
      "Intervals "
      "are of the paired differences.</p>\n",
      PairedSvg(report), "</section>\n</div>\n", Table(report),
      "<h2 class=\"part\">Time to the first token over a link</h2><div id=\"links\"></div>\n"
      "<h2 class=\"part\">Answers that differ most</h2><div id=\"examples\"></div>\n",
      TextTable(report), UpgradeHtml(report), LayerErrors(report), Allocation(report), Provenance(report),
      DataBlock(report), "<script>", kReportScript, "</script>\n");
  return RenderPage({.title = absl::StrCat(report.producer, " \u2192 ", report.consumer),
                     .width = "1180px",
                     .style = kReportStyle,
                     .body = std::move(html)});
}

}  // namespace aludel
