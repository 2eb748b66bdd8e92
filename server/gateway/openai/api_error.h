#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "server/http/http_message.h"

namespace aludel {

// An error in the shape of OpenAI's API: {"error": {message, type, param, code}}.
struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;            // "": null
  std::string code;             // "": null
  int retry_after_seconds = 0;  // 0: no Retry-After

  nlohmann::ordered_json ToJson() const;
  HttpResponse ToResponse() const;
};

// 400 for one parameter, e.g. InvalidParameter("temperature", "'temperature' must be between 0 and 2,
// found 7").
ApiError InvalidParameter(absl::string_view param, absl::string_view message);
// 400 for a parameter whose meaning we know and do not serve: ignoring it would change the answer.
ApiError UnsupportedParameter(absl::string_view param, absl::string_view message);

// 422 for a request that is right in itself, and more than this model's servers could ever hold.
ApiError Unprocessable(absl::string_view param, absl::string_view message);
// What was found wrong with a parameter: InvalidArgument is 400, FailedPrecondition 422, all else our
// own 500.
ApiError FromStatus(absl::string_view param, const absl::Status& status);

// Serializes for the wire: compact, and bytes that are not UTF-8 as U+FFFD.
std::string Dump(const nlohmann::ordered_json& json);
// An answer of this status with that body.
HttpResponse JsonResponse(int status, const nlohmann::ordered_json& body);

}  // namespace aludel
