#include "tests/testing/certificates.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

constexpr char kNewKey[] = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

void Run(const std::string& command) {
  EXPECT_EQ(std::system(absl::StrCat(command, " 2> /dev/null").c_str()), 0) << command;
}

}  // namespace

Certificates::Certificates(const std::string& folder) : folder_(absl::StrCat(::testing::TempDir(), folder)) {
  std::filesystem::create_directories(folder_);
}

std::string Certificates::Path(const std::string& file) const { return absl::StrCat(folder_, "/", file); }

void Certificates::MakeAuthority(const std::string& name) {
  Run(absl::StrCat("openssl req -x509 ", kNewKey, " -days 2 -subj /CN=", name, " -keyout ",
                   Path(name + ".key"), " -out ", Path(name + ".crt")));
}

void Certificates::MakeCertificate(const std::string& name, const std::string& authority,
                                   const std::string& names) {
  std::ofstream(Path("san")) << "subjectAltName=" << names << "\n";
  Run(absl::StrCat("openssl req ", kNewKey, " -subj /CN=", name, " -keyout ", Path("new.key"), " -out ",
                   Path("new.csr")));
  Run(absl::StrCat("openssl x509 -req -days 2 -in ", Path("new.csr"), " -CA ", Path(authority + ".crt"),
                   " -CAkey ", Path(authority + ".key"), " -CAcreateserial -extfile ", Path("san"), " -out ",
                   Path("new.crt")));
  std::filesystem::rename(Path("new.key"), Path(name + ".key"));
  std::filesystem::rename(Path("new.crt"), Path(name + ".crt"));
}

std::string Certificates::Settings(const std::string& name) const {
  return absl::StrCat("grpc_tls { certificate_file: '", Path(name + ".crt"), "' key_file: '",
                      Path(name + ".key"), "' ca_file: '", Path("ca.crt"), "' reload_interval_s: 1 }\n");
}

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace aludel
