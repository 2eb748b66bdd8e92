// Bodies of /v1/messages, its count_tokens and /v1/responses: what is accepted must be fit for a decode server and
// for a template, and a refusal must be JSON in the shape of its API with a status of the client's.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "nlohmann/json.hpp"
#include "server/gateway/anthropic/anthropic_error.h"
#include "server/gateway/anthropic/messages_request.h"
#include "server/gateway/responses/responses_dialect.h"
#include "server/gateway/responses/responses_request.h"

namespace aludel {
namespace {

void CheckRefusal(const ApiError& error) {
  if (error.status < 400 || error.status > 499) std::abort();
  for (const HttpResponse& response : {error.ToResponse(), AnthropicRefusal(error, "id")}) {
    if (!nlohmann::json::parse(response.body).at("error").at("message").is_string()) std::abort();
  }
}

void CheckAccepted(const CompletionRequest& request) {
  if (request.model.empty() || request.messages.empty()) std::abort();
  const v1::SamplingParams& sampling = request.sampling;
  if (!(sampling.temperature() >= 0) || !(sampling.top_p() >= 0 && sampling.top_p() <= 1)) std::abort();
  if (sampling.choices() != 1) std::abort();
  for (const auto& message : request.messages) {
    if (!message.at("role").is_string() || !message.at("content").is_string()) std::abort();
  }
}

void Check(const std::optional<ApiError>& error, const CompletionRequest& request) {
  error ? CheckRefusal(*error) : CheckAccepted(request);
}

}  // namespace
}  // namespace aludel

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace aludel;
  const absl::string_view body(reinterpret_cast<const char*>(bytes), size);
  for (const bool count : {false, true}) {
    CompletionRequest request;
    Check(count ? ParseCountRequest(body, &request) : ParseMessagesRequest(body, &request), request);
  }
  ResponseStore store(ResponseStore::Options{});
  store.Put("", "resp_1",
            {.messages = R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"}])",
             .items = {{"fc_1", R"({"type":"function_call","call_id":"c","name":"f","arguments":"{}"})"}}},
            absl::UnixEpoch());
  CompletionRequest request;
  ResponsesRequest responses;
  Check(ParseResponsesRequest(body, {.store = &store, .now = absl::UnixEpoch()}, &request, &responses),
        request);
  ResponsesDialect dialect(&store, "");
  if (dialect.Weigh(body) < size) std::abort();
  return 0;
}
