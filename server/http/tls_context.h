#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "openssl/ossl_typ.h"

namespace aludel {

struct TlsFiles {
  std::string certificate;  // PEM: the server's certificate, then its intermediates
  std::string key;          // PEM: its private key, without passphrase
};

// The gateway's certificate: TLS 1.2 and later, ALPN http/1.1. Reload() swaps it for new connections, while
// connections that are open go on with the one they began with. Thread-safe.
class TlsContext {
 public:
  // Fails with the file and OpenSSL's reason: unreadable, no PEM, or a key that is not the certificate's.
  static absl::StatusOr<std::unique_ptr<TlsContext>> Load(TlsFiles files);
  // Reads the files again. On failure the certificate in use stays.
  absl::Status Reload();

  const TlsFiles& files() const { return files_; }
  std::shared_ptr<SSL_CTX> current() const;

 private:
  explicit TlsContext(TlsFiles files) : files_(std::move(files)) {}

  const TlsFiles files_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<SSL_CTX> current_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aludel
