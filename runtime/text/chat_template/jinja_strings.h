#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/text/chat_template/jinja_builtins.h"
#include "runtime/text/chat_template/jinja_value.h"

namespace aludel {

// Python's str methods over UTF-8; positions and lengths count code points.

// A method of `text`, bound to it; nullopt where str has none of that name that templates use.
std::optional<JinjaValue> JinjaStringMethod(const std::string& text, const std::string& name,
                                            JinjaBudget* budget);

size_t CountCodePoints(absl::string_view text);
std::vector<absl::string_view> SplitCodePoints(absl::string_view text);
std::string UpperCase(const std::string& text);
std::string LowerCase(const std::string& text);
std::string Capitalize(const std::string& text);
// Without `characters`: white space.
std::string StripCharacters(absl::string_view text, const std::string* characters, bool left, bool right);
std::vector<std::string> SplitLines(absl::string_view text, bool keep_ends);
// Replaces the first `count` occurrences (negative: all).
absl::StatusOr<std::string> ReplaceText(const std::string& text, const std::string& from,
                                        const std::string& to, int64_t count, JinjaBudget* budget);

}  // namespace aludel
