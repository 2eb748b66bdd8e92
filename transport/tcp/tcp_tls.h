#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "transport/transport.h"
#include "transport/transport_options.h"

namespace aludel {

struct FreeSsl {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};
using SslSession = std::unique_ptr<SSL, FreeSsl>;

// What OpenSSL says of its last error, with none left behind.
std::string TakeSslError();

// TLS 1.3 with certificates on both sides for the connections of one transport, from the files of
// TransportTls. They are read again when they change; files that cannot be used leave the former ones in
// force. Belongs to the progress thread after Open.
class TcpTls {
 public:
  // InvalidArgument names the file that cannot be used.
  static absl::StatusOr<std::unique_ptr<TcpTls>> Open(const TransportTls& options);

  // A session over a connected socket, which stays its caller's.
  absl::StatusOr<SslSession> NewSession(int socket, bool accepting);
  // After the handshake: PermissionDenied where the peer's certificate, which an authority of ours has
  // signed, is not of those that the options allow.
  absl::Status CheckPeer(SSL* ssl) const;

 private:
  explicit TcpTls(const TransportTls& options) : options_(options) {}
  absl::Status Load();
  void ReloadIfChanged();
  // Differs after the files have changed.
  std::string Stamp() const;

  const TransportTls options_;
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context_{nullptr, &SSL_CTX_free};
  std::string stamp_;
  absl::Time next_look_ = absl::InfinitePast();
};

}  // namespace aludel
