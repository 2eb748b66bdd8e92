#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "grpcpp/server_context.h"

namespace aludel {

// Ok where the certificate that the caller has shown is one of `identities` (transport/peer_identity.h), or
// where there are none to be one of; PermissionDenied otherwise.
absl::Status CheckCaller(const grpc::ServerContextBase& call, const std::vector<std::string>& identities);

}  // namespace aludel
