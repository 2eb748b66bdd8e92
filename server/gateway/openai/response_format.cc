#include "server/gateway/openai/response_format.h"

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

ApiError FormatRefused(absl::string_view name, const absl::Status& status) {
  return FromStatus("response_format",
                    absl::Status(status.code(), absl::StrCat("Invalid schema for response_format '", name,
                                                             "': ", std::string(status.message()))));
}

}  // namespace aludel
