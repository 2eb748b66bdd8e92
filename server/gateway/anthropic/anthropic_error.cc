#include "server/gateway/anthropic/anthropic_error.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

const char* ErrorType(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status < 500 ? "invalid_request_error" : "api_error";
  }
}

}  // namespace

ordered_json AnthropicErrorJson(int status, absl::string_view message, absl::string_view request_id) {
  return {{"type", "error"},
          {"error", {{"type", ErrorType(status)}, {"message", std::string(message)}}},
          {"request_id", std::string(request_id)}};
}

HttpResponse AnthropicRefusal(const ApiError& error, absl::string_view request_id) {
  HttpResponse response = error.ToResponse();  // its status and headers
  response.body = Dump(AnthropicErrorJson(error.status, error.message, request_id));
  return response;
}

}  // namespace aludel
