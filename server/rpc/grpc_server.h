#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/impl/codegen/service_type.h"
#include "grpcpp/server.h"
#include "server/rpc/grpc_credentials.h"

namespace aludel {

// Starts a gRPC server with the standard health service and reflection. Unavailable where the port is taken.
absl::StatusOr<std::unique_ptr<grpc::Server>> StartGrpcServer(const std::string& listen,
                                                              const GrpcTlsOptions& tls,
                                                              grpc::Service* service);

}  // namespace aludel
