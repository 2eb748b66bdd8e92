#pragma once

#include <optional>
#include <string>

#include "aludel/v1/handoff.pb.h"
#include "nlohmann/json.hpp"
#include "server/gateway/openai/json_fields.h"

namespace aludel {

// Reads response_format: text, json_object (any JSON object) or json_schema, which is enforced whether
// `strict` or not, and the `name` of that one. A fault is left in `fields`. Whether the schema can be
// enforced is not known yet.
void ParseResponseFormat(JsonFields& fields, std::optional<v1::TextConstraint>* constraint,
                         std::string* name);
// What a client hears of a schema that cannot be enforced: the place and the keyword, or the limit.
ApiError FormatRefused(absl::string_view name, const absl::Status& status);

}  // namespace aludel
