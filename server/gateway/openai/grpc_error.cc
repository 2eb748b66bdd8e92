#include "server/gateway/openai/grpc_error.h"

#include "absl/strings/numbers.h"
#include "server/gateway/access/request_record.h"

namespace aludel {

ApiError FromGrpcStatus(const grpc::Status& status) {
  ApiError error;
  error.message = status.error_message();
  error.type = "server_error";
  switch (status.error_code()) {
    case grpc::StatusCode::INVALID_ARGUMENT:
    case grpc::StatusCode::OUT_OF_RANGE:
      error.status = 400;
      error.type = "invalid_request_error";
      break;
    case grpc::StatusCode::FAILED_PRECONDITION:
      return Unprocessable("", status.error_message());
    case grpc::StatusCode::NOT_FOUND:
      error.status = 404;
      error.type = "invalid_request_error";
      break;
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      error.status = 429;
      error.type = "rate_limit_error";
      // The waiting room says when; a decode server does not.
      if (!absl::SimpleAtoi(status.error_details(), &error.retry_after_seconds))
        error.retry_after_seconds = 1;
      break;
    case grpc::StatusCode::CANCELLED:
      error.status = 499;
      break;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      error.status = 504;
      // gRPC's own words where its timer was first.
      if (error.message == "Deadline Exceeded") {
        error.message =
            "the request was not answered before its deadline: 'aludel.timeout_ms', or the gateway's "
            "request_timeout_ms";
      }
      break;
    case grpc::StatusCode::UNAVAILABLE:
      error.status = 503;
      error.retry_after_seconds = 1;
      break;
    default:
      error.status = 500;
  }
  error.code = OutcomeName(error.status);
  return error;
}

}  // namespace aludel
