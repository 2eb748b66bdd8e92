#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "runtime/evaluate/evaluate.h"
#include "runtime/evaluate/report/upgrade_table.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const Interval& interval) { return Json::array({interval.low, interval.high}); }

template <typename T>
Json ToJson(const std::optional<T>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

Json ToJson(const LayerError& error) {
  return {{"k", error.k.ratio()},
          {"v", error.v.ratio()},
          {"logits", error.logits.ratio()},
          {"output", error.output.ratio()}};
}

Json ToJson(const Share& share) {
  return {{"first_layer", share.first_layer},
          {"layers", share.layers},
          {"part", share.part},
          {"bytes_per_token", share.bytes}};
}

Json ToJson(const FormatResult& f, const std::vector<TextResult>& texts) {
  Json json;
  json["name"] = f.name;
  json["tier"] = ToJson(f.tier);
  json["recomputed_layers"] = f.recomputed_layers;
  json["recomputed_tokens"] = f.recomputed_tokens;
  json["consumer_compute_share"] = f.consumer_compute_share;
  json["bytes_per_token"] = f.bytes_per_token;
  json["bytes_vs_raw"] = f.bytes_vs_raw;
  json["f1"] = f.f1;
  json["f1_ci95"] = ToJson(f.f1_ci95);
  json["f1_loss_ci95"] = ToJson(f.f1_loss_ci95);
  json["em"] = f.em;
  json["kl"] = f.kl;
  json["kl_ci95"] = ToJson(f.kl_ci95);
  json["kl_p95"] = f.kl_p95;
  json["max_kl"] = ToJson(f.max_kl);
  json["tv"] = f.tv;
  json["ppl"] = Json::object();
  for (size_t i = 0; i < texts.size(); ++i) json["ppl"][texts[i].name] = f.ppl[i];
  json["encode_tokens_per_s"] = f.encode_tokens_per_s;
  json["reconstruct_tokens_per_s"] = f.reconstruct_tokens_per_s;
  json["layer_error"] = Json::array();
  for (const LayerError& error : f.layer_errors) json["layer_error"].push_back(ToJson(error));
  json["allocation"] = Json::array();
  for (const Share& share : f.shares) json["allocation"].push_back(ToJson(share));
  return json;
}

Json ToJson(const UpgradeCurve& curve) {
  Json intervals = Json::array();
  for (const Interval& interval : curve.kl_ci95) intervals.push_back(ToJson(interval));
  return {{"after", ToJson(curve.after)},
          {"again", curve.again},
          {"kl", curve.kl},
          {"kl_ci95", std::move(intervals)}};
}

Json ToJson(const UpgradeResult& result) {
  Json curves = Json::array();
  for (const UpgradeCurve& curve : result.curves) curves.push_back(ToJson(curve));
  return {{"text", result.text},
          {"format", result.format},
          {"windows", result.windows},
          {"base_bytes_per_token", result.base_bytes_per_token},
          {"upgrade_bytes_per_token", result.upgrade_bytes_per_token},
          {"whole_bytes_per_token", result.whole_bytes_per_token},
          {"spans", result.spans},
          {"curves", std::move(curves)}};
}

Json ToJson(const Example& example) {
  Json formats = Json::array();
  for (const Example::Shown& shown : example.formats) {
    formats.push_back({{"text", shown.text}, {"f1", shown.f1}, {"kl", shown.kl}});
  }
  return {{"number", example.number},
          {"prompt", example.prompt},
          {"oracle", example.oracle},
          {"oracle_f1", example.oracle_f1},
          {"formats", std::move(formats)}};
}

Json ToJson(const EvaluateReport& report) {
  Json json;
  json["producer"] = {{"path", report.producer}, {"hash", report.producer_hash}};
  json["consumer"] = {{"path", report.consumer}, {"hash", report.consumer_hash}};
  json["compute"] = report.compute;
  json["kv_dtype"] = report.kv_dtype;
  json["questions"] = report.questions;
  json["prompt_tokens"] = report.prompt_tokens;
  json["answer_tokens"] = report.answer_tokens;
  json["local_tokens_per_s"] = report.local_tokens_per_s;
  json["producer_tokens_per_s"] = report.producer_tokens_per_s;
  json["command"] = report.command;
  json["machine"] = report.machine;
  json["date"] = report.date;
  json["verdict"] = Verdict(report);
  json["oracle"] = {{"f1", report.oracle_f1},
                    {"em", report.oracle_em},
                    {"f1_ci95", ToJson(report.oracle_f1_ci95)},
                    {"ppl", Json::object()}};
  for (const TextResult& text : report.texts) json["oracle"]["ppl"][text.name] = text.oracle_ppl;
  json["formats"] = Json::array();
  for (const FormatResult& format : report.formats) json["formats"].push_back(ToJson(format, report.texts));
  json["upgrades"] = Json::array();
  for (const UpgradeResult& upgrade : report.upgrades) json["upgrades"].push_back(ToJson(upgrade));
  json["examples"] = Json::array();
  for (const Example& example : report.examples) json["examples"].push_back(ToJson(example));
  return json;
}

absl::Status WriteText(const std::string& path, const std::string& text) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "wbe"), &std::fclose);
  if (file == nullptr || std::fwrite(text.data(), 1, text.size(), file.get()) != text.size() ||
      std::fflush(file.get()) != 0) {
    return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

// Perplexity of each text, and over the oracle's.
std::string TextTable(const EvaluateReport& report) {
  if (report.texts.empty()) return "";
  std::string table = "\n| perplexity |", oracle = "| oracle |";
  for (const TextResult& text : report.texts) {
    absl::StrAppend(&table, " ", text.name, " |");
    absl::StrAppendFormat(&oracle, " %.3f |", text.oracle_ppl);
  }
  absl::StrAppend(&table, "\n|---|", absl::StrJoin(std::vector<std::string>(report.texts.size(), "---|"), ""),
                  "\n", oracle, "\n");
  for (const FormatResult& f : report.formats) {
    absl::StrAppend(&table, "| ", f.name, " |");
    for (size_t i = 0; i < f.ppl.size(); ++i) {
      absl::StrAppendFormat(&table, " %.3f (%.3fx) |", f.ppl[i], f.ppl[i] / report.texts[i].oracle_ppl);
    }
    absl::StrAppend(&table, "\n");
  }
  return table;
}

}  // namespace

std::string ReportMarkdown(const EvaluateReport& report) {
  std::string text = absl::StrFormat("# %s -> %s\n\n", report.producer, report.consumer);
  for (const std::string& sentence : Verdict(report)) absl::StrAppend(&text, sentence, "\n\n");
  absl::StrAppendFormat(
      &text,
      "%d questions, %d prompt tokens (all but the last of each handed over), %d oracle answer "
      "tokens, %s arithmetic, %s caches (the oracle's is bf16).\nF1 and exact match as in SQuAD; KL(oracle "
      "|| format) in nats over the "
      "oracle's "
      "answer tokens; intervals are 95 %% bootstrap.\n\n",
      report.questions, report.prompt_tokens, report.answer_tokens, report.compute, report.kv_dtype);
  absl::StrAppend(&text,
                  "| format | bytes/token | vs raw | F1 | EM | KL | KL p95 | TV | consumer compute | "
                  "encode tok/s | reconstruct tok/s |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
  absl::StrAppendFormat(&text, "| oracle | 0 | 0 | %.3f [%.3f, %.3f] | %.3f | 0 | 0 | 0 | 1 | - | - |\n",
                        report.oracle_f1, report.oracle_f1_ci95.low, report.oracle_f1_ci95.high,
                        report.oracle_em);
  for (const FormatResult& f : report.formats) {
    absl::StrAppendFormat(&text,
                          "| %s | %.1f | %.4f | %.3f [%.3f, %.3f] | %.3f | %.4f [%.4f, %.4f] | %.3f | %.4f | "
                          "%.3f | %.0f | %.0f |\n",
                          f.name, f.bytes_per_token, f.bytes_vs_raw, f.f1, f.f1_ci95.low, f.f1_ci95.high,
                          f.em, f.kl, f.kl_ci95.low, f.kl_ci95.high, f.kl_p95, f.tv, f.consumer_compute_share,
                          f.encode_tokens_per_s, f.reconstruct_tokens_per_s);
  }
  absl::StrAppend(&text, TextTable(report), UpgradeMarkdown(report));
  for (const std::string& warning : LossWarnings(report)) absl::StrAppend(&text, "\n", warning, "\n");
  if (!report.command.empty()) {
    absl::StrAppend(&text, "\n`", report.command, "`\n\n", report.machine, ", ", report.date, "\n");
  }
  return text;
}

std::vector<std::string> LossWarnings(const EvaluateReport& report) {
  std::vector<std::string> warnings;
  for (const FormatResult& f : report.formats) {
    if (!f.max_kl.has_value() || f.kl_ci95.low <= *f.max_kl) continue;
    warnings.push_back(
        absl::StrFormat("warning: %s loses KL %.4f [%.4f, %.4f] on these questions, its calibration was "
                        "asked for at most %g: calibrate with "
                        "prompts like these",
                        f.name, f.kl, f.kl_ci95.low, f.kl_ci95.high, *f.max_kl));
  }
  return warnings;
}

std::string ReportJson(const EvaluateReport& report) {
  // A cut answer may end within a character.
  return ToJson(report).dump(1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

absl::Status WriteReport(const EvaluateReport& report, const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return absl::UnavailableError(absl::StrCat(directory, ": ", error.message()));
  ALUDEL_RETURN_IF_ERROR(WriteText(absl::StrCat(directory, "/report.json"), ReportJson(report) + "\n"));
  ALUDEL_RETURN_IF_ERROR(WriteText(absl::StrCat(directory, "/report.md"), ReportMarkdown(report)));
  return WriteText(absl::StrCat(directory, "/report.html"), ReportHtml(report));
}

}  // namespace aludel
