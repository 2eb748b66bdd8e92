#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"

namespace aludel {

// How the three servers know each other over gRPC. All files empty: plain text, and every client that reaches
// a port may use it. Otherwise TLS with certificates on both sides (mTLS), read again when they change.
struct GrpcTlsOptions {
  std::string certificate_file;
  std::string key_file;
  std::string ca_file;
  absl::Duration reload_interval = absl::Seconds(1);

  bool enabled() const { return !certificate_file.empty(); }
};

// InvalidArgument names the file that cannot be read, holds no certificate or key, or the pair that does not
// belong together. gRPC itself would wait for better files and log nothing.
absl::Status CheckGrpcTls(const GrpcTlsOptions& options);

// A caller without a certificate of `ca_file`'s authorities is refused in the handshake.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const GrpcTlsOptions& options);
// A server whose certificate is not of these authorities, or not for the name we called it by, is refused.
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const GrpcTlsOptions& options);

}  // namespace aludel
