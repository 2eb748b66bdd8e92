#pragma once

#include <optional>

#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "server/gateway/openai/api_error.h"
#include "server/gateway/openai/completion_request.h"

namespace aludel {

// Reads a body of POST /v1/messages as Anthropic's API defines it, into a chat request. Fields that cannot change the
// answer ("metadata", "cache_control", "service_tier", unknown ones) are ignored; fields that would and that we do
// not serve are an error that names them. Where the last message is the assistant's, the answer goes on from it.
// Nothing for success.
std::optional<ApiError> ParseMessagesRequest(absl::string_view body, CompletionRequest* request);
// The same of POST /v1/messages/count_tokens, which takes what makes the prompt.
std::optional<ApiError> ParseCountRequest(absl::string_view body, CompletionRequest* request);

// What the two take, as a JSON schema, by their own code.
nlohmann::ordered_json DescribeMessagesBody(bool count);

}  // namespace aludel
