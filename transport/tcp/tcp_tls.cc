#include "transport/tcp/tcp_tls.h"

#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "transport/monotonic_clock.h"
#include "transport/peer_identity.h"
#include "transport/transport_options.h"

namespace aludel {
namespace {

absl::Status Unusable(const std::string& file, const char* what) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", what, ": ", TakeSslError()));
}

// The names that an authority has put its signature to: DNS and URI entries of subjectAltName.
std::vector<std::string> NamesOf(X509* certificate) {
  std::vector<std::string> names;
  auto* entries =
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(entries); ++i) {
    const GENERAL_NAME* entry = sk_GENERAL_NAME_value(entries, i);
    if (entry->type != GEN_DNS && entry->type != GEN_URI) continue;
    const ASN1_IA5STRING* text =
        entry->type == GEN_DNS ? entry->d.dNSName : entry->d.uniformResourceIdentifier;
    names.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)), ASN1_STRING_length(text));
  }
  GENERAL_NAMES_free(entries);
  return names;
}

}  // namespace

std::string TakeSslError() {
  char text[256] = "unknown error";
  if (const unsigned long code = ERR_peek_last_error(); code != 0)
    ERR_error_string_n(code, text, sizeof(text));
  ERR_clear_error();
  return text;
}

absl::StatusOr<std::unique_ptr<TcpTls>> TcpTls::Open(const TransportTls& options) {
  auto tls = std::unique_ptr<TcpTls>(new TcpTls(options));
  tls->stamp_ = tls->Stamp();
  if (absl::Status status = tls->Load(); !status.ok()) return status;
  return tls;
}

absl::Status TcpTls::Load() {
  ERR_clear_error();
  decltype(context_) context(SSL_CTX_new(TLS_method()), &SSL_CTX_free);
  if (context == nullptr) return absl::InternalError(absl::StrCat("TLS: ", TakeSslError()));
  SSL_CTX_set_min_proto_version(context.get(), TLS1_3_VERSION);
  // Frames say their own lengths, so an end without close_notify hides nothing. Nothing is resumed:
  // connections are few and kept.
  SSL_CTX_set_options(context.get(), SSL_OP_NO_TICKET | SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_ENABLE_KTLS);
  SSL_CTX_set_num_tickets(context.get(), 0);
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  // Several records in one system call.
  SSL_CTX_set_read_ahead(context.get(), 1);
  SSL_CTX_set_default_read_buffer_len(context.get(), 8 * (SSL3_RT_MAX_PACKET_SIZE));
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  if (SSL_CTX_use_certificate_chain_file(context.get(), options_.certificate_file.c_str()) != 1) {
    return Unusable(options_.certificate_file, "no usable certificate");
  }
  if (SSL_CTX_use_PrivateKey_file(context.get(), options_.key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
    return Unusable(options_.key_file, "no usable key for that certificate");
  }
  if (SSL_CTX_check_private_key(context.get()) != 1)
    return Unusable(options_.key_file, "not the certificate's key");
  if (SSL_CTX_load_verify_file(context.get(), options_.ca_file.c_str()) != 1) {
    return Unusable(options_.ca_file, "no usable authority");
  }
  context_ = std::move(context);
  return absl::OkStatus();
}

std::string TcpTls::Stamp() const {
  std::string stamp;
  for (const std::string* file : {&options_.certificate_file, &options_.key_file, &options_.ca_file}) {
    struct stat info = {};
    stat(file->c_str(), &info);
    absl::StrAppend(&stamp, info.st_ino, ":", info.st_size, ":", info.st_mtim.tv_sec, ".",
                    info.st_mtim.tv_nsec, " ");
  }
  return stamp;
}

void TcpTls::ReloadIfChanged() {
  const absl::Time now = MonotonicNow();
  if (now < next_look_) return;
  next_look_ = now + options_.reload_interval;
  std::string stamp = Stamp();
  // A pair that is half replaced does not load: asked again at the next look.
  if (stamp != stamp_ && Load().ok()) stamp_ = std::move(stamp);
}

absl::StatusOr<SslSession> TcpTls::NewSession(int socket, bool accepting) {
  ReloadIfChanged();
  ERR_clear_error();
  SslSession session(SSL_new(context_.get()));
  if (session == nullptr || SSL_set_fd(session.get(), socket) != 1) {
    return absl::ResourceExhaustedError(absl::StrCat("TLS: ", TakeSslError()));
  }
  if (accepting) {
    SSL_set_accept_state(session.get());
  } else {
    SSL_set_connect_state(session.get());
  }
  return session;
}

absl::Status TcpTls::CheckPeer(SSL* ssl) const {
  if (options_.peer_identities.empty()) return absl::OkStatus();
  X509* const certificate = SSL_get0_peer_certificate(ssl);
  const std::vector<std::string> names =
      certificate == nullptr ? std::vector<std::string>() : NamesOf(certificate);
  if (HasIdentity(options_.peer_identities, names)) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("the peer's certificate is for \"",
                                                  absl::StrJoin(names, "\", \""), "\", want one of \"",
                                                  absl::StrJoin(options_.peer_identities, "\", \""), "\""));
}

}  // namespace aludel
