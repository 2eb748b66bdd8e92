#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "grpcpp/impl/codegen/service_type.h"
#include "grpcpp/server.h"
#include "server/rpc/call_limit.h"
#include "server/rpc/grpc_credentials.h"

namespace aludel {

// Starts a gRPC server with `services`, which must outlive it, and the standard health service and reflection. Unavailable
// where the port is taken. Calls beyond
// `limits` of one connection wait at the client; over all connections the service counts them (CallLimit). Under memory
// pressure gRPC reads no more, and then ends calls and connections with RESOURCE_EXHAUSTED.
absl::StatusOr<std::unique_ptr<grpc::Server>> StartGrpcServer(const std::string& listen,
                                                              const GrpcTlsOptions& tls,
                                                              const GrpcLimits& limits,
                                                              absl::Span<grpc::Service* const> services);

}  // namespace aludel
