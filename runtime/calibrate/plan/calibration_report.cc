#include "runtime/calibrate/plan/calibration_report.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "nlohmann/json.hpp"
#include "runtime/status_macros.h"
#include "runtime/tool/byte_size.h"

namespace aludel {
namespace {

using Json = nlohmann::ordered_json;

Json PointJson(const AludelCandidate& candidate, const std::vector<std::string>& consumers) {
  Json point = {{"recomputed_layers", candidate.shape.recomputed_layers},
                {"bytes_per_token", candidate.bytes()},
                {"kl", candidate.kl()},
                {"kl_bound", candidate.kl_bound()}};
  for (const AludelGroup& group : candidate.shape.groups) point["ranks"].push_back(group.rank);
  for (size_t c = 0; c < candidate.measured.size() && c < consumers.size(); ++c) {
    const FittedDecoder& fit = candidate.decoders[c];
    Json consumer = {{"consumer", consumers[c]},
                     {"kl", candidate.measured[c].kl},
                     {"kl_bound", candidate.measured[c].kl_bound},
                     {"width", fit.width},
                     {"steps", fit.steps},
                     {"train_error", fit.train_error},
                     {"held_out_error", fit.held_out_error}};
    if (fit.cut_from > 0) consumer["cut_from_steps"] = fit.cut_from;
    if (fit.tuned.has_value())
      consumer["tuned"] = {{"first_kl", fit.tuned->first_kl}, {"last_kl", fit.tuned->last_kl}};
    point["consumers"].push_back(std::move(consumer));
  }
  return point;
}

absl::Status WriteText(const std::string& path, const std::string& text) {
  std::ofstream file(path + ".partial", std::ios::binary);
  file << text;
  file.close();
  std::error_code error;
  if (file) std::filesystem::rename(path + ".partial", path, error);
  if (!file || error) return absl::UnavailableError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

}  // namespace

std::string CalibrationReport::PlanAndActual(const StageMeter& meter) const {
  std::string table = absl::StrFormat("%-18s %10s %20s %10s %10s %10s\n", "stage", "took", "planned", "times",
                                      "memory", "planned");
  double seconds = 0;
  int64_t memory = 0;
  for (const PlannedStage& stage : plan.stages) {
    const StageMeter::Figures& took = meter.Of(stage.work.stage);
    seconds += took.seconds;
    memory = std::max(memory, took.memory);
    // What was planned of as many repetitions.
    const double planned = stage.most_seconds * static_cast<double>(std::max<int64_t>(1, took.times)) /
                           static_cast<double>(stage.work.most);
    absl::StrAppendFormat(&table, "%-18s %10s %20s %10d %10s %10s\n", Name(stage.work.stage),
                          FormatSeconds(took.seconds), FormatSeconds(planned), took.times,
                          FormatBytes(static_cast<double>(took.memory)), FormatBytes(stage.work.memory));
  }
  const std::string planned =
      plan.most_seconds > 1.05 * plan.least_seconds
          ? absl::StrCat(FormatSeconds(plan.least_seconds), " to ", FormatSeconds(plan.most_seconds))
          : FormatSeconds(plan.least_seconds);
  absl::StrAppendFormat(&table, "%-18s %10s %20s %10s %10s %10s\n", "all", FormatSeconds(seconds), planned,
                        "", FormatBytes(static_cast<double>(memory)), FormatBytes(plan.memory));
  return table;
}

std::string CalibrationReport::ToJson(const StageMeter& meter) const {
  Json json = {{"format", format},
               {"consumers", consumers},
               {"prompts", prompts},
               {"seconds", meter.Seconds()},
               {"planned",
                {{"least_seconds", plan.least_seconds},
                 {"most_seconds", plan.most_seconds},
                 {"memory_bytes", plan.memory},
                 {"disk_bytes", plan.disk}}}};
  if (plan.device > 0) json["planned"]["device_bytes"] = plan.device;
  if (!budget.empty()) json["budget"] = budget;
  for (const PlannedStage& stage : plan.stages) {
    const StageMeter::Figures& took = meter.Of(stage.work.stage);
    Json row = {{"stage", Name(stage.work.stage)},
                {"seconds", took.seconds},
                {"times", took.times},
                {"memory_bytes", took.memory},
                {"planned_least_seconds", stage.least_seconds},
                {"planned_most_seconds", stage.most_seconds},
                {"planned_memory_bytes", stage.work.memory}};
    for (size_t i = 0; i < stage.work.once.values.size(); ++i) {
      if (stage.work.once.values[i] > 0)
        row["work"][std::string(Name(static_cast<Work>(i)))] = stage.work.once.values[i];
    }
    json["stages"].push_back(std::move(row));
  }
  for (const AludelCandidate& candidate : tried) json["tried"].push_back(PointJson(candidate, consumers));
  json["chosen"] = PointJson(chosen, consumers);
  json["chosen"]["end_share"] = chosen.range.end_share;
  json["chosen"]["code_digits"] = chosen.range.digits;
  for (const LatentSpectrum& spectrum : chosen.spectra) {
    json["spectra"].push_back({{"first_layer", spectrum.group.first_layer},
                               {"layers", spectrum.group.layers},
                               {"latents", spectrum.group.rank},
                               {"fitted", spectrum.fitted},
                               {"step", spectrum.step},
                               {"energy_sent", spectrum.sent},
                               {"energy_of_first_eighth", spectrum.first_eighth},
                               {"energy_of_first_quarter", spectrum.first_quarter},
                               {"energy_of_first_half", spectrum.first_half}});
  }
  for (size_t c = 0; c < chosen.decoders.size() && c < consumers.size(); ++c) {
    for (const LayerLoss& layer : chosen.decoders[c].layers) {
      json["layers"].push_back(
          {{"consumer", consumers[c]}, {"layer", layer.layer}, {"k_error", layer.k}, {"v_error", layer.v}});
    }
  }
  return json.dump(1) + "\n";
}

std::string CalibrationReport::Spectra() const {
  if (chosen.spectra.empty())
    return "\nThe encoder was there before: it was not fitted, and its latents' energies are not known\n";
  std::string table = absl::StrFormat(
      "\nEnergy of each group's latents on the prompts of the fit\n%-12s %8s %8s %10s %12s %12s %12s\n",
      "layers", "latents", "fitted", "sent", "first 1/8", "first 1/4", "first 1/2");
  for (const LatentSpectrum& spectrum : chosen.spectra) {
    const int first = spectrum.group.first_layer;
    absl::StrAppendFormat(&table, "%-12s %8d %8d %9.2f%% %11.2f%% %11.2f%% %11.2f%%\n",
                          absl::StrCat(first, "-", first + spectrum.group.layers - 1), spectrum.group.rank,
                          spectrum.fitted, 100 * spectrum.sent, 100 * spectrum.first_eighth,
                          100 * spectrum.first_quarter, 100 * spectrum.first_half);
  }
  absl::StrAppendFormat(
      &table,
      "Of any 64 tokens of a held-out prompt at most %.3g %% of the codes were at the ends of their ranges\n",
      100 * chosen.range.end_share);
  return table;
}

std::string CalibrationReport::ToText(const StageMeter& meter) const {
  std::string text = absl::StrFormat("format %s: %s\n", format, prompts);
  if (!budget.empty()) absl::StrAppend(&text, "budget: ", budget, "\n");
  absl::StrAppend(&text, "\nTime and memory, planned and as they were\n", PlanAndActual(meter), "\nTried, ",
                  "KL on held-out prompts, the worst consumer's\n");
  absl::StrAppendFormat(&text, "%-18s %14s %10s %10s\n", "recomputed layers", "bytes/token", "KL", "at most");
  for (const AludelCandidate& candidate : tried) {
    absl::StrAppendFormat(&text, "%-18d %14.1f %10.4f %10.4f\n", candidate.shape.recomputed_layers,
                          candidate.bytes(), candidate.kl(), candidate.kl_bound());
  }
  if (tried.size() == 1) {
    absl::StrAppend(&text,
                    "One rate was tried: this is no curve. --bytes-per-token with another rate and another "
                    "--format gives a further point.\n");
  }
  absl::StrAppend(&text, "\nChosen\n");
  for (size_t c = 0; c < chosen.measured.size() && c < consumers.size(); ++c) {
    absl::StrAppend(&text, chosen.Describe(c, consumers[c], raw_bytes), "\n");
  }
  absl::StrAppend(&text, Spectra());
  absl::StrAppend(&text,
                  "\nError of each layer on held-out tokens before tuning, over its variance; fits weigh "
                  "what answers feel\n");
  absl::StrAppendFormat(&text, "%-24s %6s %10s %10s\n", "consumer", "layer", "K", "V");
  for (size_t c = 0; c < chosen.decoders.size() && c < consumers.size(); ++c) {
    for (const LayerLoss& layer : chosen.decoders[c].layers) {
      absl::StrAppendFormat(&text, "%-24s %6d %10.4f %10.4f\n", consumers[c], layer.layer, layer.k, layer.v);
    }
  }
  return text;
}

AludelCandidate Findings(const AludelCandidate& candidate) {
  AludelCandidate findings;
  findings.shape = candidate.shape;
  findings.measured = candidate.measured;
  findings.range = candidate.range;
  findings.spectra = candidate.spectra;
  for (const FittedDecoder& fit : candidate.decoders) {
    findings.decoders.push_back(
        {{}, fit.train_error, fit.held_out_error, fit.width, fit.tuned, fit.layers, fit.steps, fit.cut_from});
  }
  return findings;
}

absl::Status WriteReport(const std::string& directory, const CalibrationReport& report,
                         const StageMeter& meter) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return absl::UnavailableError(absl::StrCat(directory, ": ", error.message()));
  const std::string stem = absl::StrCat(directory, "/", report.format);
  ALUDEL_RETURN_IF_ERROR(WriteText(stem + ".json", report.ToJson(meter)));
  return WriteText(stem + ".txt", report.ToText(meter));
}

}  // namespace aludel
