#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "transport/address_pattern.h"
#include "transport/wire.h"

namespace aludel {

// Where callers may have frames sent, so that none makes this server connect to what the caller should not
// reach: to the caller's own IP address, to any address of this machine where the caller is on it too, and to
// what the configuration allows. Thread-safe.
class ReceiverPolicy {
 public:
  ReceiverPolicy(AddressKind kind, std::vector<AddressPattern> allowed)
      : kind_(kind), allowed_(std::move(allowed)) {}

  // `address` with the sockets that `caller` (grpc::ServerContext::peer()) may name, in their order.
  // InvalidArgument where it is no transport address, PermissionDenied where no socket is left.
  absl::StatusOr<std::string> Admit(const std::string& address, const std::string& caller) const;

 private:
  const AddressKind kind_;
  const std::vector<AddressPattern> allowed_;
};

}  // namespace aludel
