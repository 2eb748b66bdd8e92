#include "server/rpc/grpc_credentials.h"

#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "grpcpp/security/tls_certificate_provider.h"
#include "grpcpp/security/tls_credentials_options.h"
#include "runtime/files/regular_file.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

namespace tls = grpc::experimental;

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;
using Certificate = std::unique_ptr<X509, decltype(&X509_free)>;
using PrivateKey = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;

absl::StatusOr<File> OpenFile(const std::string& path) {
  if (absl::Status regular = CheckRegularFile(path); !regular.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("grpc_tls: ", regular.message()));
  }
  File file(std::fopen(path.c_str(), "r"));
  if (file == nullptr) return absl::InvalidArgumentError(absl::StrCat("grpc_tls: cannot read ", path));
  return file;
}

absl::StatusOr<Certificate> ReadCertificate(const std::string& path) {
  ALUDEL_ASSIGN_OR_RETURN(const File file, OpenFile(path));
  Certificate certificate(PEM_read_X509(file.get(), nullptr, nullptr, nullptr), &X509_free);
  if (certificate == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("grpc_tls: ", path, " holds no PEM certificate"));
  }
  return certificate;
}

// Keys with a passphrase are not supported: there is no terminal to ask on.
int NoPassphrase(char*, int, int, void*) { return 0; }

std::shared_ptr<tls::CertificateProviderInterface> Watch(const GrpcTlsOptions& options) {
  return std::make_shared<tls::FileWatcherCertificateProvider>(
      options.key_file, options.certificate_file, options.ca_file,
      static_cast<unsigned int>(absl::ToInt64Seconds(options.reload_interval)));
}

}  // namespace

absl::Status CheckGrpcTls(const GrpcTlsOptions& options) {
  if (!options.enabled()) return absl::OkStatus();
  ALUDEL_ASSIGN_OR_RETURN(const Certificate certificate, ReadCertificate(options.certificate_file));
  ALUDEL_RETURN_IF_ERROR(ReadCertificate(options.ca_file).status());
  ALUDEL_ASSIGN_OR_RETURN(const File file, OpenFile(options.key_file));
  const PrivateKey key(PEM_read_PrivateKey(file.get(), nullptr, &NoPassphrase, nullptr), &EVP_PKEY_free);
  if (key == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("grpc_tls: ", options.key_file, " holds no PEM private key without passphrase"));
  }
  if (X509_check_private_key(certificate.get(), key.get()) != 1) {
    return absl::InvalidArgumentError(absl::StrCat("grpc_tls: the key of ", options.key_file,
                                                   " does not belong to the certificate of ",
                                                   options.certificate_file));
  }
  return absl::OkStatus();
}

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const GrpcTlsOptions& options) {
  if (!options.enabled()) return grpc::InsecureServerCredentials();
  tls::TlsServerCredentialsOptions wanted(Watch(options));
  wanted.watch_root_certs();
  wanted.watch_identity_key_cert_pairs();
  wanted.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return tls::TlsServerCredentials(wanted);
}

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const GrpcTlsOptions& options) {
  if (!options.enabled()) return grpc::InsecureChannelCredentials();
  tls::TlsChannelCredentialsOptions wanted;
  wanted.set_certificate_provider(Watch(options));
  wanted.watch_root_certs();
  wanted.watch_identity_key_cert_pairs();
  return tls::TlsCredentials(wanted);
}

}  // namespace aludel
