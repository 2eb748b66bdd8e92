#include "server/gateway/openai/api_error.h"

#include "absl/strings/str_cat.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

ordered_json StringOrNull(const std::string& text) {
  return text.empty() ? ordered_json(nullptr) : ordered_json(text);
}

}  // namespace

ordered_json ApiError::ToJson() const {
  ordered_json error;
  error["message"] = message;
  error["type"] = type;
  error["param"] = StringOrNull(param);
  error["code"] = StringOrNull(code);
  return {{"error", std::move(error)}};
}

HttpResponse ApiError::ToResponse() const {
  HttpResponse response;
  response.status = status;
  response.body = Dump(ToJson());
  response.error = message;
  if (status == 401) response.headers.push_back({"WWW-Authenticate", "Bearer"});
  if (retry_after_seconds > 0) {
    response.headers.push_back({"Retry-After", absl::StrCat(retry_after_seconds)});
  }
  return response;
}

ApiError InvalidParameter(absl::string_view param, absl::string_view message) {
  ApiError error;
  error.message = std::string(message);
  error.param = std::string(param);
  error.code = "invalid_value";
  return error;
}

ApiError UnsupportedParameter(absl::string_view param, absl::string_view message) {
  ApiError error = InvalidParameter(param, message);
  error.code = "unsupported_parameter";
  return error;
}

ApiError Unprocessable(absl::string_view param, absl::string_view message) {
  ApiError error = InvalidParameter(param, message);
  error.status = 422;
  error.code = "unprocessable_entity";
  return error;
}

ApiError FromStatus(absl::string_view param, const absl::Status& status) {
  if (absl::IsInvalidArgument(status)) return InvalidParameter(param, status.message());
  if (absl::IsFailedPrecondition(status)) return Unprocessable(param, status.message());
  ApiError error;
  error.status = 500;
  error.type = "server_error";
  error.message = std::string(status.message());
  return error;
}

std::string Dump(const ordered_json& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, ordered_json::error_handler_t::replace);
}

HttpResponse JsonResponse(int status, const ordered_json& body) {
  HttpResponse response;
  response.status = status;
  response.body = Dump(body);
  return response;
}

}  // namespace aludel
