#pragma once

#include <optional>

#include "nlohmann/json.hpp"
#include "server/gateway/openai/api_error.h"

namespace aludel {

// Reads a "messages" value into what chat templates take: [{"role", "content"}, ...], content parts joined to
// one string; an assistant's refusal as its content; assistants' tool calls with their arguments as objects,
// as templates print them, or as the string that they came in where that is none; tools' answers with the id
// of their call. 400 says where a message is wrong.
// What it takes, as a JSON schema, but for what depends on the role.
nlohmann::ordered_json MessagesSchema();
std::optional<ApiError> ParseMessages(const nlohmann::ordered_json& messages, nlohmann::ordered_json* parsed);

}  // namespace aludel
