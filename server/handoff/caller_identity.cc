#include "server/handoff/caller_identity.h"

#include "grpc/grpc_security_constants.h"
#include "grpcpp/security/auth_context.h"
#include "transport/peer_identity.h"

namespace aludel {

absl::Status CheckCaller(const grpc::ServerContextBase& call, const std::vector<std::string>& identities) {
  if (identities.empty()) return absl::OkStatus();
  std::vector<std::string> names;
  const auto context = call.auth_context();
  for (const char* property : {GRPC_PEER_DNS_PROPERTY_NAME, GRPC_PEER_URI_PROPERTY_NAME}) {
    for (const grpc::string_ref& name : context->FindPropertyValues(property)) {
      names.emplace_back(name.data(), name.size());
    }
  }
  if (HasIdentity(identities, names)) return absl::OkStatus();
  return absl::PermissionDeniedError("the caller's certificate is not of those that may call this server");
}

}  // namespace aludel
