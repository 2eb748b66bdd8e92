#include "server/gateway/openai/fields/json_fields.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"

namespace aludel {

using nlohmann::ordered_json;

void FieldSchema::Add(absl::string_view name, ordered_json schema) {
  const std::string key(name);
  if (properties_.contains(key) || absl::c_linear_search(left_out_, key)) return;
  if (schema.contains("type") && schema["type"].is_string() && !schema.contains("enum")) {
    schema["type"] = ordered_json::array({schema["type"], "null"});
  } else {
    schema = {{"anyOf", ordered_json::array({std::move(schema), {{"type", "null"}}})}};
  }
  properties_[key] = std::move(schema);
}

ordered_json FieldSchema::ToJson() const {
  ordered_json json = {{"type", "object"}, {"properties", properties_}};
  if (!required_.empty()) json["required"] = required_;
  if (closed_) json["additionalProperties"] = false;
  // What must be there is not null.
  for (const std::string& name : required_) {
    ordered_json& schema = json["properties"][name];
    if (schema.contains("anyOf")) {
      schema = ordered_json(schema["anyOf"][0]);
    } else {
      schema["type"] = ordered_json(schema["type"][0]);
    }
  }
  return json;
}

void JsonFields::Nested(absl::string_view name,
                        const std::function<void(JsonFields& fields, FieldSchema* schema)>& read) {
  static const auto* const kNothing = new ordered_json(ordered_json::object());
  const ordered_json* object = FindObject(name);
  if (object == nullptr && schema_ == nullptr) return;
  FieldSchema nested;
  JsonFields fields(object == nullptr ? *kNothing : *object, absl::StrCat(prefix_, name, "."),
                    schema_ == nullptr ? nullptr : &nested);
  read(fields, &nested);
  if (schema_ != nullptr) schema_->Add(name, nested.ToJson());
  if (fields.error()) Fail(*fields.error());
}

const ordered_json* JsonFields::Find(absl::string_view name) const {
  const auto it = object_.find(std::string(name));
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

std::optional<double> JsonFields::Number(absl::string_view name, double min, double max) {
  Describe(name, [&] { return ordered_json{{"type", "number"}, {"minimum", min}, {"maximum", max}}; });
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
  Describe(name, [&] { return ordered_json{{"type", "integer"}, {"minimum", min}, {"maximum", max}}; });
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
  Describe(name, [] { return ordered_json{{"type", "boolean"}}; });
  const ordered_json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) {
    WrongType(name, *value, "a boolean");
    return std::nullopt;
  }
  return value->get<bool>();
}

std::optional<std::string> JsonFields::String(absl::string_view name) {
  Describe(name, [] { return ordered_json{{"type", "string"}}; });
  const ordered_json* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    WrongType(name, *value, "a string");
    return std::nullopt;
  }
  return value->get<std::string>();
}

const ordered_json* JsonFields::Object(absl::string_view name) {
  Describe(name, [] { return ordered_json{{"type", "object"}}; });
  return FindObject(name);
}

const ordered_json* JsonFields::FindObject(absl::string_view name) {
  const ordered_json* value = Find(name);
  if (value != nullptr && !value->is_object()) {
    WrongType(name, *value, "an object");
    return nullptr;
  }
  return value;
}

void JsonFields::Refuse(absl::string_view name, const ordered_json& harmless, absl::string_view instead) {
  if (schema_ != nullptr) schema_->LeaveOut(name);
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

ordered_json DescribeFields(const std::function<void(JsonFields& fields)>& read) {
  const ordered_json nothing = ordered_json::object();
  FieldSchema schema;
  JsonFields fields(nothing, "", &schema);
  read(fields);
  return schema.ToJson();
}

}  // namespace aludel
