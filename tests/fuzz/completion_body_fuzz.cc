// Bodies of /v1/chat/completions and /v1/completions: what is accepted must be fit for a decode server, and a
// refusal must be JSON in OpenAI's shape with a status of the client's.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "nlohmann/json.hpp"
#include "server/gateway/openai/completion_request.h"

namespace aludel {
namespace {

void CheckRefusal(const ApiError& error) {
  if (error.status < 400 || error.status > 499) std::abort();
  const auto body = nlohmann::json::parse(error.ToResponse().body);
  if (!body.at("error").at("message").is_string()) std::abort();
}

void CheckAccepted(const CompletionRequest& request) {
  if (request.model.empty()) std::abort();
  const v1::SamplingParams& sampling = request.sampling;
  if (!(sampling.temperature() >= 0) || !(sampling.top_p() >= 0 && sampling.top_p() <= 1)) std::abort();
  for (const int dialect : {0, 1, 2, 3}) {
    std::optional<v1::TextConstraint> constraint = request.constraint;
    if (const auto error = ConstrainToCall(request.tools, static_cast<ToolDialect>(dialect), &constraint)) {
      CheckRefusal(*error);
    }
  }
}

}  // namespace
}  // namespace aludel

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  using namespace aludel;
  const absl::string_view body(reinterpret_cast<const char*>(bytes), size);
  for (const bool chat : {true, false}) {
    CompletionRequest request;
    const auto error = chat ? ParseChatRequest(body, &request) : ParseCompletionRequest(body, &request);
    if (error) {
      CheckRefusal(*error);
    } else {
      CheckAccepted(request);
    }
  }
  return 0;
}
