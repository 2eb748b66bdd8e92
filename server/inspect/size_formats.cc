#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "runtime/inspect/inspect_artifact.h"
#include "runtime/kv/kv_layout.h"
#include "runtime/model/model_config.h"
#include "runtime/status_macros.h"
#include "server/inspect/size_command.h"

namespace aludel {
namespace {

constexpr char kRaw[] = "raw";

double BytesPerToken(const nlohmann::ordered_json& format) {
  double measured = 0;
  for (const auto& consumer : format["consumers"]) {
    measured = std::max(measured, consumer.value("expected_bytes_per_token", 0.0));
  }
  if (measured > 0) return measured;
  return format.value("bytes_per_token", format.value("unpacked_bytes_per_token", 0.0));
}

}  // namespace

absl::StatusOr<SizeObjective> ParseSizeObjective(absl::string_view text) {
  SizeObjective objective;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> named =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    absl::Duration duration;
    double* const seconds = named.first == "ttft"  ? &objective.ttft
                            : named.first == "itl" ? &objective.itl
                                                   : nullptr;
    if (seconds == nullptr || !absl::ParseDuration(named.second, &duration) ||
        duration <= absl::ZeroDuration() || duration > absl::Hours(1)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--objective: found \"", part,
                       "\", want ttft=DURATION or itl=DURATION, like 2s or 50ms, "
                       "above 0 and at most 1h"));
    }
    *seconds = absl::ToDoubleSeconds(duration);
  }
  return objective;
}

absl::StatusOr<SizeFormat> ParseSizeFormat(const std::string& text, const std::vector<SizeFormat>& known) {
  const std::vector<std::string> parts = absl::StrSplit(text, ' ', absl::SkipEmpty());
  if (parts.size() == 1) {
    const auto found = std::find_if(known.begin(), known.end(),
                                    [&](const SizeFormat& format) { return format.name == parts[0]; });
    if (found != known.end()) return *found;
    return absl::NotFoundError(absl::StrCat(
        "--format: found \"", text, "\", want one of ",
        absl::StrJoin(known, ", ",
                      [](std::string* out, const SizeFormat& format) { out->append(format.name); }),
        ", or \"NAME BYTES SHARE\""));
  }
  SizeFormat format{.name = parts.empty() ? "" : parts[0]};
  if (parts.size() != 3 || !absl::SimpleAtod(parts[1], &format.bytes_per_token) ||
      !absl::SimpleAtod(parts[2], &format.compute_share) ||
      !(format.bytes_per_token >= 0 && format.bytes_per_token <= 1e9) ||
      !(format.compute_share >= 0 && format.compute_share <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--format: found \"", text, "\", want \"NAME BYTES SHARE\" with a share from 0 to 1, or a name"));
  }
  return format;
}

absl::StatusOr<std::vector<SizeFormat>> FormatsOf(const std::string& model, const std::string& codec) {
  ALUDEL_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::Load(model));
  const KvLayout token{config.layers, config.kv_heads, config.head_dim, 1, 1, DType::kBf16};
  std::vector<SizeFormat> formats = {
      {.name = kRaw, .bytes_per_token = static_cast<double>(token.bytes_per_token())}};
  if (codec.empty()) return formats;
  ALUDEL_ASSIGN_OR_RETURN(const nlohmann::ordered_json artifact, InspectArtifact(codec));
  for (const auto& format : artifact["formats"]) {
    const auto layers = format["model_layers"].get<int64_t>();
    if (layers != config.layers) {
      return absl::InvalidArgumentError(absl::StrCat("--codec ", codec, ": its models have ", layers,
                                                     " layers, --model ", model, " has ", config.layers));
    }
    const auto recomputed = format.value("recomputed_layers", int64_t{0});
    formats.push_back({.name = format["name"].get<std::string>(),
                       .bytes_per_token = BytesPerToken(format),
                       .compute_share = static_cast<double>(std::max<int64_t>(recomputed, 0)) /
                                        static_cast<double>(layers)});
  }
  return formats;
}

}  // namespace aludel
