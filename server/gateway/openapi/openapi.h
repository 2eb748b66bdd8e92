#pragma once

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace aludel {

// What the gateway serves, as OpenAPI 3.1: the paths are those of routes.h, the requests' fields are what their parsers read
// (FieldSchema), the answers' are in answers.cc. Made once; thread-safe.
const nlohmann::ordered_json& OpenApi();

// The schemas of answers by their names, a JSON object. Members that are not named may come with later versions.
extern const absl::string_view kAnswerSchemas;

}  // namespace aludel
