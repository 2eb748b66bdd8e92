#pragma once

#include <string>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace aludel {

// gRPC's codes and Abseil's are the same numbers.
grpc::Status ToGrpc(const absl::Status& status);
absl::Status FromGrpc(const grpc::Status& status);

// "ok", "deadline_exceeded", ...: for metric labels and logs.
std::string StatusName(absl::StatusCode code);

}  // namespace aludel
