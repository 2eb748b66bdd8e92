#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "server/inspect/size_balance.h"

namespace aludel {

// aludel-inspect size: how many servers a trace needs. argv[0] is "size".
absl::Status SizeCommand(int argc, char** argv);

// "ttft=2s,itl=50ms", with durations as Abseil reads them; either may be missing.
absl::StatusOr<SizeObjective> ParseSizeObjective(absl::string_view text);

// "NAME BYTES SHARE": bytes for each token, and the share of a prompt's prefill that is left to the decode server. NAME alone
// stands for a format of `known`.
absl::StatusOr<SizeFormat> ParseSizeFormat(const std::string& text, const std::vector<SizeFormat>& known);

// Of a model, and of an artifact where one is given ("": none): raw, then the artifact's in its order. An artifact's bytes are
// what calibration measured, or else what the codes take before they are packed.
absl::StatusOr<std::vector<SizeFormat>> FormatsOf(const std::string& model, const std::string& codec);

}  // namespace aludel
