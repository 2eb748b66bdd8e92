#include "server/gateway/openai/fields/response_format.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace aludel {

using nlohmann::ordered_json;

void ParseResponseFormat(JsonFields& fields, std::optional<v1::TextConstraint>* constraint,
                         std::string* name) {
  fields.Describe("response_format", [] {
    const ordered_json plain = ordered_json::parse(R"({"type": "object", "required": ["type"], "properties": {
        "type": {"enum": ["text", "json_object"]}, "schema": {"type": ["object", "null"]}}})");
    const ordered_json regex = ordered_json::parse(
        R"({"type": "object", "required": ["type", "pattern"], "properties": {
        "type": {"const": "regex"}, "pattern": {"type": "string", "minLength": 1}}})");
    const ordered_json grammar = ordered_json::parse(
        R"({"type": "object", "required": ["type", "grammar"], "properties": {
        "type": {"const": "grammar"}, "grammar": {"type": "string", "minLength": 1}}})");
    const ordered_json wrapper = {
        {"type", "object"},
        {"properties", {{"name", {{"type", "string"}}}, {"schema", {{"type", "object"}}}}},
        {"required", ordered_json::array({"name", "schema"})}};
    const ordered_json schema = {
        {"type", "object"},
        {"properties", {{"type", {{"const", "json_schema"}}}, {"json_schema", wrapper}}},
        {"required", ordered_json::array({"type", "json_schema"})}};
    return ordered_json{{"anyOf", ordered_json::array({plain, schema, regex, grammar})}};
  });
  const ordered_json* format = fields.Object("response_format");
  if (format == nullptr) return;
  const ordered_json type = format->value("type", ordered_json());
  if (type == "text") return;
  if (type == "json_object") {
    // llama.cpp's clients give a schema here.
    const auto schema = format->find("schema");
    const bool given = schema != format->end() && !schema->is_null();
    if (given && !schema->is_object()) return fields.Fail("response_format.schema", "must be a JSON schema");
    constraint->emplace().set_json_schema(given ? Dump(*schema) : R"({"type":"object"})");
    return;
  }
  // Fireworks' and Together's.
  for (const auto& [kind, member] : {std::pair("grammar", "grammar"), std::pair("regex", "pattern")}) {
    if (type != kind) continue;
    const ordered_json text = format->value(member, ordered_json());
    if (!text.is_string() || text == "") {
      return fields.Fail(absl::StrCat("response_format.", member), "must be a string that is not empty");
    }
    v1::TextConstraint& wire = constraint->emplace();
    type == "regex" ? wire.set_regex(text.get<std::string>()) : wire.set_grammar(text.get<std::string>());
    return;
  }
  if (type != "json_schema") {
    return fields.Fail("response_format.type",
                       "must be 'text', 'json_object', 'json_schema', 'regex' or 'grammar'");
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
  const std::string what = name.empty() ? absl::StrCat("Invalid '", param, "': ")
                                        : absl::StrCat("Invalid schema for ", param, " '", name, "': ");
  return FromStatus(param, absl::Status(status.code(), absl::StrCat(what, std::string(status.message()))));
}

}  // namespace aludel
