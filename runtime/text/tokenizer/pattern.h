#pragma once

#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "runtime/text/tokenizer/regex.h"

namespace aludel {

// What a tokenizer.json searches for: {"String": literal text} or {"Regex": expression}. Immutable
// and thread-safe.
class Pattern {
 public:
  // `config` may be null, which is an error like any other wrong value.
  static absl::StatusOr<Pattern> FromJson(const nlohmann::json* config, const std::string& origin);
  static absl::StatusOr<Pattern> FromRegex(absl::string_view expression, const std::string& origin);

  // Tells of all occurrences in `text` from left to right, not overlapping.
  absl::Status ForEach(absl::string_view text, absl::FunctionRef<void(TextRange)> found) const;

 private:
  std::string literal_;
  std::optional<Regex> regex_;
};

}  // namespace aludel
