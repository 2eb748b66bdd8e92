#include "server/gateway/openai/fields/token_ids.h"

#include <limits>
#include <string>

#include "absl/strings/str_cat.h"

namespace aludel {

std::optional<ApiError> ParseTokenIds(const nlohmann::ordered_json& value, absl::string_view param,
                                      std::vector<int32_t>* ids) {
  const std::string expected = absl::StrCat("'", param, "' must be a list of token ids");
  if (!value.is_array())
    return InvalidParameter(param, absl::StrCat(expected, ", found ", value.type_name()));
  ids->reserve(value.size());
  for (const nlohmann::ordered_json& id : value) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > uint64_t{std::numeric_limits<int32_t>::max()}) {
      return InvalidParameter(param, absl::StrCat(expected, "; element ", ids->size(), " is none"));
    }
    ids->push_back(id.get<int32_t>());
  }
  return std::nullopt;
}

nlohmann::ordered_json TokenIdSchema() {
  return {{"type", "integer"}, {"minimum", 0}, {"maximum", std::numeric_limits<int32_t>::max()}};
}

std::optional<ApiError> CheckTokenIds(const ServedModel& model, absl::string_view param,
                                      absl::Span<const int32_t> ids) {
  const int vocab_size = model.tokenizer->vocab_size();
  for (int32_t id : ids) {
    if (id < 0 || id >= vocab_size) {
      return InvalidParameter(param, absl::StrCat("'", param, "' holds token id ", id, "; model '",
                                                  model.name, "' knows 0 to ", vocab_size - 1));
    }
  }
  return std::nullopt;
}

}  // namespace aludel
