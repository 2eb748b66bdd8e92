#include "server/bench/ttft/ttft_rows.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

double Round(double value, double scale) { return std::round(value * scale) / scale; }

// Index of each sample, by time.
std::vector<size_t> ByTime(const std::vector<TtftSample>& samples) {
  std::vector<size_t> order(samples.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return samples[a].seconds < samples[b].seconds; });
  return order;
}

double BytesPerToken(const TtftSample& sample) {
  if (sample.handed_off_tokens == 0) return 0;
  return static_cast<double>(sample.payload_bytes) / static_cast<double>(sample.handed_off_tokens);
}

using Line = std::vector<std::string>;

// Columns as wide as their widest field, the first `left` of them aligned to the left.
std::string Align(const std::vector<Line>& lines, size_t left) {
  std::vector<size_t> widths;
  for (const Line& line : lines) {
    widths.resize(std::max(widths.size(), line.size()));
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (const Line& line : lines) {
    std::string one;
    for (size_t i = 0; i < line.size(); ++i) {
      const std::string space(widths[i] - line[i].size(), ' ');
      absl::StrAppend(&one, i == 0 ? "" : "  ", i < left ? line[i] : space, i < left ? space : line[i]);
    }
    one.erase(one.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, one, "\n");
  }
  return text;
}

double StageOf(const TtftSample& sample, const std::string& name) {
  for (const auto& [stage, seconds] : sample.stages) {
    if (stage == name) return seconds;
  }
  return 0;
}

// Names of the stages that took any time that the table shows, in the servers' order.
std::vector<std::string> StageNames(const std::vector<TtftRow>& rows) {
  constexpr double kShown = 5e-5;  // seconds
  std::vector<std::string> all, names;
  for (const TtftRow& row : rows) {
    if (row.samples.empty()) continue;
    for (const auto& [name, seconds] : row.samples.front().stages) {
      if (std::find(all.begin(), all.end(), name) == all.end()) all.push_back(name);
    }
  }
  for (const std::string& name : all) {
    const bool shown = std::any_of(rows.begin(), rows.end(), [&](const TtftRow& row) {
      return !row.samples.empty() && StageOf(MedianSample(row.samples), name) >= kShown;
    });
    if (shown) names.push_back(name);
  }
  return names;
}

// Whether both are of the same rounds, and of prompts as long.
bool AreComparable(const TtftRow& a, const TtftRow& b) {
  return a.link == b.link && a.tokens == b.tokens && a.artifact == b.artifact;
}

// What the planner chose, and how often.
std::map<std::string, int64_t> ChoicesOf(const TtftRow& row) {
  std::map<std::string, int64_t> choices;
  for (const TtftSample& sample : row.samples) {
    if (!sample.choice.empty()) ++choices[sample.choice];
  }
  return choices;
}

}  // namespace

std::string TtftStateName(TtftState state) {
  switch (state) {
    case TtftState::kLocal:
      return "-";
    case TtftState::kCold:
      return "cold";
    case TtftState::kWarm:
      return "warm";
  }
  return "";
}

TtftSpread SpreadOf(const std::vector<TtftSample>& samples) {
  const std::vector<size_t> order = ByTime(samples);
  return {.median = samples[order[(order.size() - 1) / 2]].seconds,
          .least = samples[order.front()].seconds,
          .most = samples[order.back()].seconds};
}

const TtftSample& MedianSample(const std::vector<TtftSample>& samples) {
  return samples[ByTime(samples)[(samples.size() - 1) / 2]];
}

double SpeedupOf(const TtftRow& row, const std::vector<TtftRow>& rows) {
  if (row.samples.empty()) return 0;
  for (const TtftRow& local : rows) {
    if (local.state != TtftState::kLocal || !AreComparable(local, row)) continue;
    if (local.samples.empty()) return 0;
    return SpreadOf(local.samples).median / SpreadOf(row.samples).median;
  }
  return 0;
}

double PlannerOfBest(const TtftRow& planner, const std::vector<TtftRow>& rows) {
  double best = 0;
  for (const TtftRow& row : rows) {
    const bool is_option = row.format != planner.format && row.state != TtftState::kWarm;
    if (!is_option || row.samples.empty() || !AreComparable(row, planner)) continue;
    const double seconds = SpreadOf(row.samples).median;
    best = best == 0 ? seconds : std::min(best, seconds);
  }
  return best == 0 || planner.samples.empty() ? 0 : SpreadOf(planner.samples).median / best;
}

std::string FormatName(const TtftRow& row) {
  return row.artifact.empty() ? row.format : absl::StrCat(row.format, "@", row.artifact);
}

std::string LinkName(double bits_per_second) {
  if (bits_per_second == 0) return "no cap";
  if (bits_per_second < 1e6) return absl::StrFormat("%g kb/s", bits_per_second / 1e3);
  if (bits_per_second < 1e9) return absl::StrFormat("%g Mb/s", bits_per_second / 1e6);
  return absl::StrFormat("%g Gb/s", bits_per_second / 1e9);
}

std::string TtftTable(const std::vector<TtftRow>& rows) {
  const std::vector<std::string> stages = StageNames(rows);
  Line head = {"link", "tokens", "format", "state", "bytes/token", "ms", "least", "most", "speedup"};
  head.insert(head.end(), stages.begin(), stages.end());
  std::vector<Line> lines = {head};
  std::string notes;
  for (const TtftRow& row : rows) {
    Line line = {LinkName(row.link), absl::StrCat(row.tokens), FormatName(row), TtftStateName(row.state)};
    if (row.samples.empty()) {
      lines.push_back(line);
      absl::StrAppend(&notes, absl::StrJoin(line, ", "), ": ", row.reason, "\n");
      continue;
    }
    const TtftSample& middle = MedianSample(row.samples);
    const TtftSpread spread = SpreadOf(row.samples);
    line.push_back(row.state == TtftState::kLocal ? "0" : absl::StrFormat("%.1f", BytesPerToken(middle)));
    for (const double seconds : {spread.median, spread.least, spread.most}) {
      line.push_back(absl::StrFormat("%.1f", seconds * 1e3));
    }
    const double speedup = SpeedupOf(row, rows);
    line.push_back(speedup > 0 ? absl::StrFormat("%.2fx", speedup) : "");
    for (const std::string& stage : stages) {
      line.push_back(absl::StrFormat("%.1f", StageOf(middle, stage) * 1e3));
    }
    lines.push_back(line);
    if (const auto choices = ChoicesOf(row); !choices.empty()) {
      absl::StrAppendFormat(&notes,
                            "%s, %d tokens: the %s took %.2fx of the best option's time and chose %s\n",
                            LinkName(row.link), row.tokens, FormatName(row), PlannerOfBest(row, rows),
                            absl::StrJoin(choices, ", ", absl::PairFormatter(" ")));
    }
  }
  return notes.empty() ? Align(lines, 4) : absl::StrCat(Align(lines, 4), "\n", notes);
}

ordered_json TtftJson(const std::vector<TtftRow>& rows) {
  ordered_json array = ordered_json::array();
  for (const TtftRow& row : rows) {
    ordered_json one = {
        {"link_bits_per_second", row.link > 0 ? ordered_json(row.link) : ordered_json(nullptr)},
        {"tokens", row.tokens},
        {"format", row.format},
        {"artifact", row.artifact},
        {"state", row.state == TtftState::kLocal ? "local" : TtftStateName(row.state)},
        {"samples", row.samples.size()}};
    if (!row.reason.empty()) one["reason"] = row.reason;
    if (!row.samples.empty()) {
      const TtftSpread spread = SpreadOf(row.samples);
      const TtftSample& middle = MedianSample(row.samples);
      one["seconds"] = {{"median", Round(spread.median, 1e6)},
                        {"least", Round(spread.least, 1e6)},
                        {"most", Round(spread.most, 1e6)}};
      for (const TtftSample& sample : row.samples)
        one["seconds"]["all"].push_back(Round(sample.seconds, 1e6));
      if (const double speedup = SpeedupOf(row, rows); speedup > 0) one["speedup"] = Round(speedup, 1e4);
      if (const auto choices = ChoicesOf(row); !choices.empty()) {
        one["choices"] = choices;
        one["of_best"] = Round(PlannerOfBest(row, rows), 1e4);
      }
      one["bytes_per_token"] = Round(BytesPerToken(middle), 1e2);
      one["recomputed_tokens"] = row.tokens - middle.handed_off_tokens;
      one["stages"] = ordered_json::object();
      for (const auto& [name, seconds] : middle.stages) one["stages"][name] = Round(seconds, 1e6);
    }
    array.push_back(std::move(one));
  }
  return array;
}

}  // namespace aludel
