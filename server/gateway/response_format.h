#pragma once

#include <optional>

#include "aludel/v1/handoff.pb.h"
#include "nlohmann/json.hpp"
#include "server/gateway/json_fields.h"

namespace aludel {

// Reads response_format: text, json_object (any JSON object) or json_schema, which is enforced whether
// `strict` or not. `ordered` is the same body with its order kept. A fault is left in `fields`; it names the
// place and the keyword of a schema that is not supported.
void ParseResponseFormat(JsonFields& fields, const nlohmann::ordered_json& ordered,
                         std::optional<v1::TextConstraint>* constraint);

}  // namespace aludel
