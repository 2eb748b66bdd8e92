#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/gateway/openai/api_error.h"
#include "server/gateway/openai/completion_request.h"
#include "server/gateway/responses/response_store.h"

namespace aludel {

// What a body of /v1/responses holds beside the chat request.
struct ResponsesRequest {
  bool store = false;       // wanted, and possible here
  size_t instructions = 0;  // messages at the beginning that are not part of the conversation
  size_t carried = 0;       // bytes that were stored, and are part of the conversation
  std::string repeats;      // members that the response object repeats, with their defaults; a JSON object
};

// Whose request it is, and what the gateway keeps of the answers before it.
struct ResponsesContext {
  ResponseStore* store = nullptr;
  std::string client;
  absl::Time now;                 // the store's clock
  size_t max_carried = SIZE_MAX;  // bytes of what is stored that a request may bring along
};

// Reads a body of POST /v1/responses as OpenAI's API defines it. Fields that cannot change the answer are ignored;
// fields that would and that we do not serve are an error that names them. The conversation that `previous_response_id`
// names stands in front of the input, without its instructions. Nothing for success.
std::optional<ApiError> ParseResponsesRequest(absl::string_view body, const ResponsesContext& context,
                                              CompletionRequest* request, ResponsesRequest* responses);

// What it takes, as a JSON schema, by its own code.
nlohmann::ordered_json DescribeResponsesBody();

}  // namespace aludel
