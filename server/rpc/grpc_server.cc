#include "server/rpc/grpc_server.h"

#include "absl/strings/str_cat.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/health_check_service_interface.h"
#include "grpcpp/resource_quota.h"
#include "grpcpp/server_builder.h"

namespace aludel {
namespace {

// A prompt of a million tokens in varints, with room.
constexpr int kMaxMessageBytes = 8 << 20;

// Streams of one connection beyond the calls that the service takes: for probes, and for calls that are to hear that they
// are too many.
constexpr int kMoreStreams = 256;

// A connection that has not finished TLS and HTTP/2's preface by then, and one that is without a call for so long, ends.
constexpr int kHandshakeMs = 10000;
constexpr int kIdleMs = 600000;
// A peer with open calls that is gone without a word ends as late as both together.
constexpr int kKeepaliveMs = 60000;
constexpr int kKeepaliveTimeoutMs = 20000;

}  // namespace

absl::StatusOr<std::unique_ptr<grpc::Server>> StartGrpcServer(const std::string& listen,
                                                              const GrpcTlsOptions& tls,
                                                              const GrpcLimits& limits,
                                                              absl::Span<grpc::Service* const> services) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort(listen, MakeServerCredentials(tls), &port);
  for (grpc::Service* const service : services) builder.RegisterService(service);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetResourceQuota(grpc::ResourceQuota("aludel").Resize(limits.memory_bytes));
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, limits.max_calls + kMoreStreams);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kIdleMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  // Two servers on one port would share its connections at random.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // A decode server keeps many short probes and streams going.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat("listen ", listen, ": gRPC cannot listen there"));
  }
  server->GetHealthCheckService()->SetServingStatus(true);
  return server;
}

}  // namespace aludel
