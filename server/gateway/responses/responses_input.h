#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "nlohmann/json.hpp"
#include "server/gateway/openai/api_error.h"

namespace aludel {

// The JSON of an output item of an earlier answer, by its id; null where it is not known.
using FindItem = std::function<std::shared_ptr<const std::string>(const std::string& id)>;

// "input" of /v1/responses, a string or items, to messages as chat templates take them (chat_messages.h has their
// form), behind those that are in `parsed`: `function_call` becomes a call of the assistant's message before it,
// `function_call_output` a message of the role "tool"; `item_reference` stands for what `find` gives. Items of
// reasoning become `reasoning_content`, which templates show where they want it. A fault names its place, e.g.
// "input[2].content[0].type".
std::optional<ApiError> ParseInput(const nlohmann::ordered_json& input, const FindItem& find,
                                   nlohmann::ordered_json* parsed);
// What it takes, as a JSON schema.
nlohmann::ordered_json InputSchema();

}  // namespace aludel
