#include "server/http/tls_context.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/files/regular_file.h"

namespace aludel {
namespace {

// The last error OpenSSL knows of, and none left behind.
std::string TakeError() {
  char text[256] = "unknown error";
  if (const unsigned long code = ERR_peek_last_error(); code != 0)
    ERR_error_string_n(code, text, sizeof(text));
  ERR_clear_error();
  return text;
}

absl::Status Unusable(const std::string& file, const char* what) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", what, ": ", TakeError()));
}

// Of the protocols that a client offers (length-prefixed names) only http/1.1 is ours. A client that offers
// others alone is answered in HTTP/1.1 all the same, and says itself whether that will do.
int ChooseProtocol(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* offered,
                   unsigned int offered_size, void*) {
  static constexpr unsigned char kOurs[] = "\x08http/1.1";
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_size, kOurs, sizeof(kOurs) - 1, offered, offered_size) !=
      OPENSSL_NPN_NEGOTIATED) {
    return SSL_TLSEXT_ERR_NOACK;
  }
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

absl::StatusOr<std::shared_ptr<SSL_CTX>> LoadFiles(const TlsFiles& files) {
  for (const std::string& file : {files.certificate, files.key}) {
    if (absl::Status regular = CheckRegularFile(file); !regular.ok()) return regular;
  }
  ERR_clear_error();
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (context == nullptr) return absl::InternalError(absl::StrCat("TLS: ", TakeError()));
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  // Buffers of idle connections are given back, and a write may go on from a string that was moved.
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                      SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // One record a call: a peer that sends nothing but key updates must not hold the thread inside OpenSSL.
  SSL_CTX_clear_mode(context.get(), SSL_MODE_AUTO_RETRY);
  SSL_CTX_set_alpn_select_cb(context.get(), ChooseProtocol, nullptr);
  if (SSL_CTX_use_certificate_chain_file(context.get(), files.certificate.c_str()) != 1) {
    return Unusable(files.certificate, "no usable certificate");
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM) != 1) {
    return Unusable(files.key, "no usable key for that certificate");
  }
  if (SSL_CTX_check_private_key(context.get()) != 1) {
    return Unusable(files.key, "not the certificate's key");
  }
  return context;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TlsContext>> TlsContext::Load(TlsFiles files) {
  std::unique_ptr<TlsContext> context(new TlsContext(std::move(files)));
  if (absl::Status status = context->Reload(); !status.ok()) return status;
  return context;
}

absl::Status TlsContext::Reload() {
  auto loaded = LoadFiles(files_);
  if (!loaded.ok()) return loaded.status();
  absl::MutexLock lock(&mutex_);
  current_ = *std::move(loaded);
  return absl::OkStatus();
}

std::shared_ptr<SSL_CTX> TlsContext::current() const {
  absl::MutexLock lock(&mutex_);
  return current_;
}

}  // namespace aludel
