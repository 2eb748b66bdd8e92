#include "server/rpc/rpc_status.h"

#include "absl/strings/ascii.h"
#include "server/rpc/hopeless.h"

namespace aludel {

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      status.GetPayload(kHopeless) ? kHopeless : "");
}

absl::Status FromGrpc(const grpc::Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

std::string StatusName(absl::StatusCode code) {
  return absl::AsciiStrToLower(absl::StatusCodeToString(code));
}

}  // namespace aludel
