#pragma once

#include <optional>
#include <string>

#include "aludel/v1/handoff.pb.h"
#include "nlohmann/json.hpp"
#include "server/gateway/openai/fields/json_fields.h"

namespace aludel {

// Reads response_format: text, json_object (any JSON object, or of a schema beside it), json_schema, which is enforced
// whether `strict` or not, and the `name` of that one; and what peers have beside OpenAI's: regex with a pattern, and
// grammar with a GBNF grammar. A fault is left in `fields`. Whether the constraint can be enforced is not known yet.
void ParseResponseFormat(JsonFields& fields, std::optional<v1::TextConstraint>* constraint,
                         std::string* name);
// The same of a newer API, where the format itself holds the schema and its name. `fields` is the reader of the
// object whose member `name` it is. "text" and "json_object" are served where `plain_types`.
void ParseFlatFormat(JsonFields& fields, absl::string_view member, bool plain_types,
                     std::optional<v1::TextConstraint>* constraint, std::string* name);
// What a client hears of a constraint that cannot be enforced: the place and the keyword, or the limit. `param` is the
// field that it came in, `name` a schema's name or empty.
ApiError FormatRefused(absl::string_view param, absl::string_view name, const absl::Status& status);

}  // namespace aludel
