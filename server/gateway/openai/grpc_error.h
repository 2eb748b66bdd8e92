#pragma once

#include "grpcpp/support/status.h"
#include "server/gateway/openai/api_error.h"

namespace aludel {

// What a failed call to a decode server means to an HTTP client.
ApiError FromGrpcStatus(const grpc::Status& status);

}  // namespace aludel
