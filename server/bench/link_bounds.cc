#include "server/bench/link_bounds.h"

#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// Reads until the other side closes, then says how much that was.
[[noreturn]] void DrainSocket(int socket, int64_t size) {
  std::vector<uint8_t> block(static_cast<size_t>(size));
  int64_t total = 0;
  for (ssize_t got; (got = recv(socket, block.data(), block.size(), 0)) > 0;) total += got;
  _exit(write(socket, &total, sizeof(total)) == sizeof(total) ? 0 : 1);
}

std::string OutputOf(const std::string& command) {
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "";
  std::string output;
  std::array<char, 4096> buffer;
  for (size_t got; (got = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    output.append(buffer.data(), got);
  pclose(pipe);
  return output;
}

}  // namespace

absl::StatusOr<double> PlainSocketRate(int64_t size, absl::Duration duration) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t address_size = sizeof(address);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), address_size) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &address_size) != 0) {
    return absl::UnavailableError("no socket on loopback");
  }
  const pid_t child = fork();
  if (child == 0) DrainSocket(accept(listener, nullptr, nullptr), size);
  close(listener);
  const int sender = socket(AF_INET, SOCK_STREAM, 0);
  const bool connected = connect(sender, reinterpret_cast<sockaddr*>(&address), address_size) == 0;
  const std::vector<uint8_t> block(static_cast<size_t>(size), 0x5a);
  const absl::Time begin = MonotonicNow();
  while (connected && MonotonicNow() < begin + duration) {
    if (send(sender, block.data(), block.size(), MSG_NOSIGNAL) <= 0) break;
  }
  shutdown(sender, SHUT_WR);
  int64_t total = 0;
  const bool counted = recv(sender, &total, sizeof(total), MSG_WAITALL) == sizeof(total);
  const absl::Duration took = MonotonicNow() - begin;
  close(sender);
  waitpid(child, nullptr, 0);
  if (!counted || total == 0) return absl::UnavailableError("the reading process has ended");
  return static_cast<double>(total) / absl::ToDoubleSeconds(took);
}

absl::StatusOr<double> UcxPerftestRate(int64_t size, int64_t window, const std::string& transports,
                                       const std::string& devices) {
  if (std::system("command -v ucx_perftest > /dev/null") != 0) {
    return absl::NotFoundError("ucx_perftest is not installed (package ucx-utils)");
  }
  const int64_t count = std::clamp<int64_t>((int64_t{2} << 30) / size, 100, 200'000);
  const int port = 20000 + getpid() % 10000;
  // With what our transport fixes. Both sides in one shell: a server that is left ends with its client, or
  // after a minute.
  const std::string output = OutputOf(absl::StrFormat(
      "export UCX_TLS='%s' UCX_NET_DEVICES='%s' UCX_RNDV_SCHEME=get_zcopy UCX_MAX_RNDV_RAILS=1 "
      "UCX_MAX_EAGER_RAILS=1; timeout 60 ucx_perftest -p %d > /dev/null 2>&1 & sleep 1; "
      "timeout 50 ucx_perftest 127.0.0.1 -p %d -t ucp_am_bw -s %d -n %d -w %d -O %d -f 2> /dev/null | tail "
      "-n 1",
      transports, devices, port, port, size, count, count / 4, window));
  // iterations, three overheads, bandwidth average and overall, ...
  const std::vector<std::string> fields = absl::StrSplit(output, absl::ByAnyChar(" \n"), absl::SkipEmpty());
  double mebibytes = 0;
  if (fields.size() != 8 || !absl::SimpleAtod(fields[5], &mebibytes)) {
    return absl::UnavailableError("ucx_perftest did not finish");
  }
  return mebibytes * (1 << 20);
}

absl::StatusOr<ThrowawayCertificate> ThrowawayCertificate::Make() {
  ThrowawayCertificate made;
  std::string folder = (std::filesystem::temp_directory_path() / "aludel-link-XXXXXX").string();
  if (mkdtemp(folder.data()) == nullptr) return absl::UnavailableError("no temporary folder");
  made.folder_ = folder;
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"), &EVP_PKEY_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(X509_new(), &X509_free);
  X509_NAME* const name = X509_get_subject_name(certificate.get());
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("link"), -1, -1,
                             0);
  X509_set_issuer_name(certificate.get(), name);
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 86400);
  X509_set_pubkey(certificate.get(), key.get());
  X509_sign(certificate.get(), key.get(), EVP_sha256());
  const auto close = [](std::FILE* file) { std::fclose(file); };
  const std::unique_ptr<std::FILE, decltype(close)> key_file(std::fopen(made.key().c_str(), "w"), close);
  const std::unique_ptr<std::FILE, decltype(close)> file(std::fopen(made.certificate().c_str(), "w"), close);
  if (key_file == nullptr || file == nullptr || PEM_write_X509(file.get(), certificate.get()) != 1 ||
      PEM_write_PrivateKey(key_file.get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return absl::UnavailableError("a certificate cannot be written");
  }
  return made;
}

ThrowawayCertificate::~ThrowawayCertificate() {
  std::error_code ignored;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
}

}  // namespace aludel
