#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "tests/e2e/fleet.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

std::string ReadFile(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Authorities and certificates in files, made by the openssl command.
class Certificates {
 public:
  explicit Certificates(const std::string& folder) : folder_(absl::StrCat(::testing::TempDir(), folder)) {
    std::filesystem::create_directories(folder_);
  }
  std::string Path(const std::string& file) const { return absl::StrCat(folder_, "/", file); }

  void MakeAuthority(const std::string& name) {
    Run(absl::StrCat(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=", name,
        " -keyout ", Path(name + ".key"), " -out ", Path(name + ".crt")));
  }
  // For 127.0.0.1, signed by `authority`. Files are replaced as a mounted secret's are: at once.
  void MakeCertificate(const std::string& name, const std::string& authority) {
    std::ofstream(Path("san")) << "subjectAltName=IP:127.0.0.1\n";
    Run(absl::StrCat("openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=", name,
                     " -keyout ", Path("new.key"), " -out ", Path("new.csr")));
    Run(absl::StrCat("openssl x509 -req -days 2 -in ", Path("new.csr"), " -CA ", Path(authority + ".crt"),
                     " -CAkey ", Path(authority + ".key"), " -CAcreateserial -extfile ", Path("san"),
                     " -out ", Path("new.crt")));
    std::filesystem::rename(Path("new.key"), Path(name + ".key"));
    std::filesystem::rename(Path("new.crt"), Path(name + ".crt"));
  }
  std::string Settings(const std::string& name) const {
    return absl::StrCat("grpc_tls { certificate_file: '", Path(name + ".crt"), "' key_file: '",
                        Path(name + ".key"), "' ca_file: '", Path("ca.crt"), "' reload_interval_s: 1 }\n");
  }
  std::shared_ptr<grpc::ChannelCredentials> Client(const std::string& name) const {
    return grpc::SslCredentials({.pem_root_certs = ReadFile(Path("ca.crt")),
                                 .pem_private_key = name.empty() ? "" : ReadFile(Path(name + ".key")),
                                 .pem_cert_chain = name.empty() ? "" : ReadFile(Path(name + ".crt"))});
  }

 private:
  static void Run(const std::string& command) {
    EXPECT_EQ(std::system(absl::StrCat(command, " 2> /dev/null").c_str()), 0) << command;
  }
  const std::string folder_;
};

grpc::Status Describe(const Fleet& fleet, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  const auto stub =
      v1::Decode::NewStub(grpc::CreateChannel(absl::StrCat("127.0.0.1:", fleet.decode_port()), credentials));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(3));
  v1::DescribeRequest request;
  v1::DecodeDescription description;
  return stub->Describe(&context, request, &description);
}

class Security : public ::testing::Test {
 protected:
  Security() : certificates_("security_test") {
    certificates_.MakeAuthority("ca");
    certificates_.MakeAuthority("stranger-ca");
    certificates_.MakeCertificate("server", "ca");
    certificates_.MakeCertificate("client", "ca");
    certificates_.MakeCertificate("stranger", "stranger-ca");
  }
  FleetOptions Options() {
    FleetOptions options;
    options.both = certificates_.Settings("server");
    options.credentials = certificates_.Client("client");
    return options;
  }

  static std::vector<int32_t> Prompt() {
    std::vector<int32_t> prompt;
    for (int i = 0; i < 100; ++i) prompt.push_back(10 + (i * 37) % 2000);
    return prompt;
  }
  Certificates certificates_;
};

TEST_F(Security, OnlyCertificatesOfTheAuthorityAreSpokenTo) {
  Fleet fleet(Options());
  ASSERT_TRUE(fleet.Start());  // the two servers accept each other
  const Answer answer = fleet.Ask(Fleet::Request(Prompt(), 4));
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.started.plan(), "remote") << answer.started.fallback_reason();
  // A wrong version, not the handshake, is what stops this one.
  EXPECT_EQ(Describe(fleet, certificates_.Client("client")).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(Describe(fleet, certificates_.Client("")).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Describe(fleet, certificates_.Client("stranger")).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_NE(Describe(fleet, grpc::InsecureChannelCredentials()).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
}

TEST_F(Security, CertificatesAreReadAgainWhenTheyChange) {
  Fleet fleet(Options());
  ASSERT_TRUE(fleet.Start());
  // The authority is replaced: first nobody of the old one is known any more, then both servers are of the
  // new one.
  certificates_.MakeAuthority("ca");
  certificates_.MakeCertificate("server", "ca");
  certificates_.MakeCertificate("client", "ca");
  const absl::Time limit = absl::Now() + absl::Seconds(15);
  while (Describe(fleet, certificates_.Client("client")).error_code() !=
             grpc::StatusCode::FAILED_PRECONDITION &&
         absl::Now() < limit) {
    absl::SleepFor(absl::Milliseconds(100));
  }
  EXPECT_EQ(Describe(fleet, certificates_.Client("client")).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  // What is connected stays so; the next connection needs the new certificates.
  ASSERT_TRUE(fleet.StartPrefill());
  EXPECT_TRUE(fleet.WaitPrefillState("ready"));
}

TEST_F(Security, EncryptedFramesGiveTheSameAnswer) {
  FleetOptions options = Options();
  options.decode = "encrypt_frames: true\n";
  Fleet fleet(options);
  ASSERT_TRUE(fleet.Start());
  v1::GenerateRequest request = Fleet::Request(Prompt(), 6, "");
  request.set_fidelity(v1::FIDELITY_EXACT);
  const Answer local = fleet.Ask(request);
  const Answer answer = fleet.Ask(Fleet::Request(Prompt(), 6));
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.started.plan(), "remote") << answer.started.fallback_reason();
  EXPECT_EQ(answer.tokens, local.tokens);
  const Answer again = fleet.Ask(Fleet::Request(Prompt(), 6));  // from the frame cache, under another key
  EXPECT_EQ(again.started.plan(), "remote") << again.started.fallback_reason();
  EXPECT_EQ(again.tokens, local.tokens);
}

TEST_F(Security, ATamperedFrameIsRefusedAndCounted) {
  FleetOptions options = Options();
  options.decode = "encrypt_frames: true\n";
  options.link = "emulated_spoiled_share: 0.3";
  Fleet fleet(options);
  ASSERT_TRUE(fleet.Start());
  const Answer answer = fleet.Ask(Fleet::Request(Prompt(), 6));
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.started.plan(), "fallback");
  EXPECT_THAT(answer.started.fallback_reason(), HasSubstr("authentication tag"));
  EXPECT_GE(fleet.decode().Metric("aludel_frames_dropped_total{reason=\"tampered\"}"), 1);
  EXPECT_EQ(fleet.decode().Metric("aludel_tickets_total{end=\"refused\"}"), 1);
  EXPECT_TRUE(fleet.DecodeIsIdle());
}

}  // namespace
}  // namespace aludel
