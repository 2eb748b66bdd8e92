#pragma once

#include <optional>

#include "nlohmann/json.hpp"
#include "server/gateway/openai/api_error.h"

namespace aludel {

// Conversations of Anthropic's API to messages as chat templates take them (chat_messages.h has their form): blocks
// of text become one text, a line each; `tool_use` becomes a call of the assistant's message, `tool_result` a message
// of the role "tool"; neighbors of one role become one message. Blocks of thinking become `reasoning_content`, which
// templates show where they want it. A fault names its place, e.g. "messages[2].content[0].type".

// "system": a string or blocks of text. Nothing is added where it is empty.
std::optional<ApiError> ParseSystem(const nlohmann::ordered_json& system, nlohmann::ordered_json* parsed);
nlohmann::ordered_json SystemSchema();
// Adds to `parsed`.
std::optional<ApiError> ParseConversation(const nlohmann::ordered_json& messages,
                                          nlohmann::ordered_json* parsed);
// What it takes, as a JSON schema.
nlohmann::ordered_json ConversationSchema();

}  // namespace aludel
