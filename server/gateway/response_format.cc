#include "server/gateway/response_format.h"

#include "absl/strings/str_cat.h"
#include "runtime/constrain/json_schema.h"

namespace aludel {

using nlohmann::json;
using nlohmann::ordered_json;

void ParseResponseFormat(JsonFields& fields, const ordered_json& ordered,
                         std::optional<v1::TextConstraint>* constraint) {
  const json* format = fields.Object("response_format");
  if (format == nullptr) return;
  const json type = format->value("type", json());
  if (type == "text") return;
  if (type == "json_object") {
    constraint->emplace().set_json_schema(R"({"type":"object"})");
    return;
  }
  if (type != "json_schema") {
    return fields.Fail("response_format.type", "must be 'text', 'json_object' or 'json_schema'");
  }
  const auto wrapper = format->find("json_schema");
  if (wrapper == format->end() || !wrapper->is_object() || !wrapper->value("name", json()).is_string()) {
    return fields.Fail("response_format.json_schema", "must be an object with a 'name' and a 'schema'");
  }
  if (!wrapper->contains("schema") || !(*wrapper)["schema"].is_structured()) {
    return fields.Fail("response_format.json_schema.schema", "must be a JSON schema");
  }
  const ordered_json& schema = ordered.at("response_format").at("json_schema").at("schema");
  v1::TextConstraint& wire = constraint->emplace();
  wire.set_json_schema(Dump(schema));
  const absl::Status compiled = CompileConstraint({"", wire.json_schema(), ""}).status();
  if (compiled.ok()) return;
  const std::string name = (*wrapper)["name"];
  fields.Fail(FromStatus("response_format",
                         absl::Status(compiled.code(), absl::StrCat("Invalid schema for response_format '",
                                                                    name, "': ", compiled.message()))));
}

}  // namespace aludel
