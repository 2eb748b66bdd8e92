#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "server/gateway/openai/api_error.h"
#include "server/http/http_message.h"

namespace aludel {

// An error in the shape of Anthropic's API: {"type": "error", "error": {type, message}, "request_id"}. What OpenAI's
// has as `param` and `code` is in the message.
nlohmann::ordered_json AnthropicErrorJson(int status, absl::string_view message,
                                          absl::string_view request_id);
HttpResponse AnthropicRefusal(const ApiError& error, absl::string_view request_id);

}  // namespace aludel
