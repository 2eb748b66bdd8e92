#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"
#include "server/gateway/openai/api_error.h"

namespace aludel {

// A place in a body, e.g. "messages[3]".
std::string At(absl::string_view list, size_t index);

// What stands in the list that a content may be, in the words of an API.
struct TextParts {
  struct Kind {
    absl::string_view type;
    absl::string_view field;  // that holds its text
  };
  absl::Span<const Kind> kinds;
  absl::string_view noun;       // of several, e.g. "parts"
  absl::string_view separator;  // between their texts
};

// Reads a content of every API: a string, or a list of objects of these kinds, whose texts are joined. 400 names the place,
// e.g. "messages[2].content[0].type".
std::optional<ApiError> ReadText(const nlohmann::ordered_json& content, const std::string& where,
                                 const TextParts& parts, std::string* text);

}  // namespace aludel
