#include "server/bench/ttft/ttft_plan.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "runtime/codec/open_codec.h"
#include "runtime/status_macros.h"
#include "server/bench/ttft/ttft_rounds.h"

namespace aludel {
namespace {

constexpr int64_t kSaltTokens = 8;

bool NeedsNoArtifact(const std::string& format) {
  const std::vector<std::string> baselines = ListBaselines();
  return format == "raw" || format == kPlanner || absl::StartsWith(format, "recompute") ||
         std::find(baselines.begin(), baselines.end(), format) != baselines.end();
}

bool Holds(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

absl::StatusOr<double> ParseLink(absl::string_view text) {
  if (text == "none") return 0;
  double unit = 0;
  if (absl::EndsWith(text, "k")) unit = 1e3;
  if (absl::EndsWith(text, "M")) unit = 1e6;
  if (absl::EndsWith(text, "G")) unit = 1e9;
  double value = 0;
  if (unit == 0 || !absl::SimpleAtod(text.substr(0, text.size() - 1), &value) || !(value > 0) ||
      value > 1e6) {
    return absl::InvalidArgumentError(
        absl::StrCat("--links: \"", text, "\", want bits per second like 10M or 2.5G, or none for no cap"));
  }
  return value * unit;
}

}  // namespace

absl::StatusOr<std::vector<int64_t>> ParseLengths(absl::string_view list) {
  std::vector<int64_t> lengths;
  for (const absl::string_view text : absl::StrSplit(list, ',')) {
    int64_t tokens = 0;
    if (!absl::SimpleAtoi(text, &tokens) || tokens < 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("--lengths: \"", text, "\", want numbers of tokens from 2 on, separated by commas"));
    }
    lengths.push_back(tokens);
  }
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  return lengths;
}

absl::StatusOr<std::vector<double>> ParseLinks(absl::string_view list) {
  std::vector<double> links;
  for (const absl::string_view text : absl::StrSplit(list, ',')) {
    ALUDEL_ASSIGN_OR_RETURN(const double link, ParseLink(text));
    if (std::find(links.begin(), links.end(), link) == links.end()) links.push_back(link);
  }
  return links;
}

absl::Status CheckLengths(const std::vector<int64_t>& lengths, const ModelConfig& producer,
                          const ModelConfig& consumer) {
  for (const auto& [side, config] : {std::pair{"--producer", &producer}, {"--consumer", &consumer}}) {
    if (lengths.back() + 1 <= config->max_positions) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--lengths: ", lengths.back(), " tokens and one of the answer do not fit into the context of ", side,
        ", ", config->max_positions));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TtftSetup>> PlanSetups(const std::vector<std::string>& artifacts,
                                                  const std::vector<std::string>& formats) {
  const std::vector<std::string> none = {""};
  std::vector<TtftSetup> setups;
  std::vector<std::string> known;  // to errors
  std::vector<std::string> placed;
  for (const std::string& artifact : artifacts.empty() ? none : artifacts) {
    const bool first = setups.empty();
    TtftSetup setup{.artifact = artifact};
    ALUDEL_ASSIGN_OR_RETURN(const std::vector<std::string> held, ListFormats(artifact));
    ALUDEL_ASSIGN_OR_RETURN(const std::vector<std::string> video, ListVideoFormats(artifact));
    known.insert(known.end(), held.begin() + (first ? 0 : 1), held.end());
    known.insert(known.end(), video.begin(), video.end());
    std::vector<std::string> wanted = formats;
    if (formats.empty()) {
      wanted = held;
      wanted.push_back(kPlanner);
    }
    for (const std::string& format : wanted) {
      const bool here = NeedsNoArtifact(format) ? first : Holds(held, format) || Holds(video, format);
      if (!here || Holds(setup.formats, format)) continue;
      setup.formats.push_back(format);
      placed.push_back(format);
    }
    setups.push_back(std::move(setup));
  }
  for (const std::string& format : formats) {
    if (Holds(placed, format)) continue;
    known.push_back(absl::StrCat(absl::StrJoin(ListBaselines(), ", "), ", ", kPlanner));
    return absl::InvalidArgumentError(
        absl::StrCat("--formats: \"", format, "\" is in no --codec; there are ", absl::StrJoin(known, ", ")));
  }
  setups.erase(std::remove_if(setups.begin(), setups.end(),
                              [](const TtftSetup& setup) { return setup.formats.empty(); }),
               setups.end());
  return setups;
}

TtftPrompts::TtftPrompts(int64_t vocab, std::vector<int32_t> text, uint64_t seed)
    : vocab_(vocab), text_(std::move(text)), random_(seed) {}

int32_t TtftPrompts::Draw() {
  const int64_t edge = vocab_ / 8;
  return static_cast<int32_t>(std::uniform_int_distribution<int64_t>(edge, vocab_ - 1 - edge)(random_));
}

std::vector<int32_t> TtftPrompts::Next(int64_t tokens) {
  std::vector<int32_t> prompt;
  const size_t place = text_.empty() ? 0 : random_() % text_.size();
  for (int64_t i = 0; i < tokens; ++i) {
    const bool drawn = text_.empty() || i < kSaltTokens;
    prompt.push_back(drawn ? Draw() : text_[(place + static_cast<size_t>(i)) % text_.size()]);
  }
  return prompt;
}

}  // namespace aludel
