#include "server/gateway/openai/json_fields.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace aludel {

using nlohmann::ordered_json;

const ordered_json* JsonFields::Find(absl::string_view name) const {
  const auto it = object_.find(std::string(name));
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::optional<double> JsonFields::Number(absl::string_view name, double min, double max) {
  const ordered_json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    WrongType(name, *value, "a number");
    return std::nullopt;
  }
  const double number = value->get<double>();
  if (!(number >= min && number <= max)) {
    Fail(name, absl::StrCat("must be between ", min, " and ", max, ", found ", number));
    return std::nullopt;
  }
  return number;
}

std::optional<int64_t> JsonFields::Integer(absl::string_view name, int64_t min, int64_t max) {
  const ordered_json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number_integer()) {
    WrongType(name, *value, "an integer");
    return std::nullopt;
  }
  const bool too_large = value->is_number_unsigned() && value->get<uint64_t>() > uint64_t{INT64_MAX};
  const int64_t number = too_large ? 0 : value->get<int64_t>();
  if (too_large || number < min || number > max) {
    Fail(name, absl::StrCat("must be between ", min, " and ", max, ", found ", value->dump()));
    return std::nullopt;
  }
  return number;
}

std::optional<bool> JsonFields::Bool(absl::string_view name) {
  const ordered_json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) {
    WrongType(name, *value, "a boolean");
    return std::nullopt;
  }
  return value->get<bool>();
}

std::optional<std::string> JsonFields::String(absl::string_view name) {
  const ordered_json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    WrongType(name, *value, "a string");
    return std::nullopt;
  }
  return value->get<std::string>();
}

const ordered_json* JsonFields::Object(absl::string_view name) {
  const ordered_json* value = Find(name);
  if (value != nullptr && !value->is_object()) {
    WrongType(name, *value, "an object");
    return nullptr;
  }
  return value;
}

void JsonFields::Refuse(absl::string_view name, const ordered_json& harmless, absl::string_view instead) {
  const ordered_json* value = Find(name);
  if (value == nullptr || *value == harmless) return;
  if ((value->is_array() || value->is_object()) && value->empty()) return;
  const std::string param = absl::StrCat(prefix_, name);
  Fail(UnsupportedParameter(param, absl::StrCat("'", param, "' is not supported", instead)));
}

void JsonFields::Fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

void JsonFields::Fail(absl::string_view name, absl::string_view message) {
  const std::string param = absl::StrCat(prefix_, name);
  Fail(InvalidParameter(param, absl::StrCat("'", param, "' ", message)));
}

void JsonFields::WrongType(absl::string_view name, const ordered_json& found, absl::string_view expected) {
  const std::string param = absl::StrCat(prefix_, name);
  ApiError error = InvalidParameter(param, absl::StrCat("Invalid type for '", param, "': expected ", expected,
                                                        ", but found ", found.type_name(), " instead."));
  error.code = "invalid_type";
  Fail(std::move(error));
}

}  // namespace aludel
