#include "runtime/text/tokenizer/pattern.h"

#include "absl/strings/str_cat.h"
#include "runtime/files/json_reader.h"
#include "runtime/status_macros.h"

namespace aludel {

using nlohmann::json;

absl::StatusOr<Pattern> Pattern::FromJson(const json* config, const std::string& origin) {
  if (config == nullptr) return absl::InvalidArgumentError(absl::StrCat(origin, ": pattern is missing"));
  const json* text = FindMember(*config, "String");
  const json* regex = FindMember(*config, "Regex");
  const json* given = text != nullptr ? text : regex;
  if (given == nullptr || !given->is_string() || given->get_ref<const std::string&>().empty() ||
      config->size() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": pattern is ", config->dump(-1, ' ', true, json::error_handler_t::replace),
                     ", want {\"String\": TEXT} or {\"Regex\": EXPRESSION}"));
  }
  if (regex != nullptr) return FromRegex(regex->get_ref<const std::string&>(), origin);
  Pattern result;
  result.literal_ = text->get<std::string>();
  return result;
}

absl::StatusOr<Pattern> Pattern::FromRegex(absl::string_view expression, const std::string& origin) {
  Pattern result;
  ALUDEL_ASSIGN_OR_RETURN(result.regex_, Regex::Compile(expression, origin));
  return result;
}

absl::Status Pattern::ForEach(absl::string_view text, absl::FunctionRef<void(TextRange)> found) const {
  if (regex_.has_value()) return regex_->ForEach(text, found);
  for (size_t at = text.find(literal_); at != absl::string_view::npos;
       at = text.find(literal_, at + literal_.size())) {
    found(Range(at, at + literal_.size()));
  }
  return absl::OkStatus();
}

}  // namespace aludel
