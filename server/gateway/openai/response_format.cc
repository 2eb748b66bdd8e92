#include "server/gateway/openai/response_format.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace aludel {

using nlohmann::ordered_json;

void ParseResponseFormat(JsonFields& fields, std::optional<v1::TextConstraint>* constraint,
                         std::string* name) {
  fields.Describe("response_format", [] {
    const ordered_json plain = {{"type", "object"},
                                {"properties", {{"type", {{"enum", {"text", "json_object"}}}}}},
                                {"required", ordered_json::array({"type"})}};
    const ordered_json wrapper = {
        {"type", "object"},
        {"properties", {{"name", {{"type", "string"}}}, {"schema", {{"type", "object"}}}}},
        {"required", ordered_json::array({"name", "schema"})}};
    const ordered_json schema = {
        {"type", "object"},
        {"properties", {{"type", {{"const", "json_schema"}}}, {"json_schema", wrapper}}},
        {"required", ordered_json::array({"type", "json_schema"})}};
    return ordered_json{{"anyOf", ordered_json::array({plain, schema})}};
  });
  const ordered_json* format = fields.Object("response_format");
  if (format == nullptr) return;
  const ordered_json type = format->value("type", ordered_json());
  if (type == "text") return;
  if (type == "json_object") {
    constraint->emplace().set_json_schema(R"({"type":"object"})");
    return;
  }
  if (type != "json_schema") {
    return fields.Fail("response_format.type", "must be 'text', 'json_object' or 'json_schema'");
  }
  const auto wrapper = format->find("json_schema");
  if (wrapper == format->end() || !wrapper->is_object() ||
      !wrapper->value("name", ordered_json()).is_string()) {
    return fields.Fail("response_format.json_schema", "must be an object with a 'name' and a 'schema'");
  }
  if (!wrapper->contains("schema") || !(*wrapper)["schema"].is_structured()) {
    return fields.Fail("response_format.json_schema.schema", "must be a JSON schema");
  }
  *name = (*wrapper)["name"];
  constraint->emplace().set_json_schema(Dump((*wrapper)["schema"]));
}

void ParseFlatFormat(JsonFields& fields, absl::string_view member, bool plain_types,
                     std::optional<v1::TextConstraint>* constraint, std::string* name) {
  fields.Describe(member, [&] {
    ordered_json schema =
        ordered_json::parse(R"({"type": "object", "required": ["type", "schema"], "properties": {
        "type": {"const": "json_schema"}, "name": {"type": "string"}, "schema": {"type": "object"}}})");
    if (!plain_types) return schema;
    const ordered_json plain = ordered_json::parse(R"({"type": "object", "required": ["type"], "properties": {
        "type": {"enum": ["text", "json_object"]}}})");
    return ordered_json{{"anyOf", ordered_json::array({plain, std::move(schema)})}};
  });
  const ordered_json* format = fields.Object(member);
  if (format == nullptr) return;
  const ordered_json type = format->value("type", ordered_json());
  if (plain_types && type == "text") return;
  if (plain_types && type == "json_object") {
    constraint->emplace().set_json_schema(R"({"type":"object"})");
    return;
  }
  if (type != "json_schema") {
    return fields.Fail(absl::StrCat(member, ".type"), plain_types
                                                          ? "must be 'text', 'json_object' or 'json_schema'"
                                                          : "must be 'json_schema'");
  }
  const auto schema = format->find("schema");
  if (schema == format->end() || !schema->is_structured()) {
    return fields.Fail(absl::StrCat(member, ".schema"), "must be a JSON schema");
  }
  const ordered_json title = format->value("name", ordered_json());
  if (title.is_string()) *name = title;
  constraint->emplace().set_json_schema(Dump(*schema));
}

ApiError FormatRefused(absl::string_view param, absl::string_view name, const absl::Status& status) {
  return FromStatus(param, absl::Status(status.code(), absl::StrCat("Invalid schema for ", param, " '", name,
                                                                    "': ", std::string(status.message()))));
}

}  // namespace aludel
