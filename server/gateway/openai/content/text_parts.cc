#include "server/gateway/openai/content/text_parts.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

std::string Types(const TextParts& parts) {
  return absl::StrJoin(parts.kinds, ", ", [](std::string* out, const TextParts::Kind& kind) {
    absl::StrAppend(out, "'", kind.type, "'");
  });
}

std::optional<ApiError> ReadPart(const ordered_json& part, const std::string& where, const TextParts& parts,
                                 std::string* text) {
  const auto type = part.is_object() ? part.find("type") : part.end();
  if (type == part.end() || !type->is_string()) {
    return InvalidParameter(where, absl::StrCat("'", where, "' must be an object with a 'type'"));
  }
  const auto kind = absl::c_find_if(
      parts.kinds, [&](const TextParts::Kind& one) { return *type == std::string(one.type); });
  if (kind == parts.kinds.end()) {
    return UnsupportedParameter(where + ".type",
                                absl::StrCat("'", where, "': only ", parts.noun, " of type ", Types(parts),
                                             " are supported here, found '", type->get<std::string>(), "'"));
  }
  const auto found = part.find(std::string(kind->field));
  if (found == part.end() || !found->is_string()) {
    return InvalidParameter(absl::StrCat(where, ".", kind->field),
                            absl::StrCat("'", where, "' needs a string '", kind->field, "'"));
  }
  *text = found->get_ref<const std::string&>();
  return std::nullopt;
}

}  // namespace

std::string At(absl::string_view list, size_t index) { return absl::StrCat(list, "[", index, "]"); }

std::optional<ApiError> ReadText(const ordered_json& content, const std::string& where,
                                 const TextParts& parts, std::string* text) {
  if (content.is_string()) {
    *text = content.get<std::string>();
    return std::nullopt;
  }
  if (!content.is_array()) {
    return InvalidParameter(where, absl::StrCat("'", where, "' must be a string or a list of ", parts.noun,
                                                ", found ", content.type_name()));
  }
  for (size_t i = 0; i < content.size(); ++i) {
    std::string more;
    if (auto error = ReadPart(content[i], At(where, i), parts, &more)) return error;
    absl::StrAppend(text, text->empty() ? "" : parts.separator, more);
  }
  return std::nullopt;
}

}  // namespace aludel
