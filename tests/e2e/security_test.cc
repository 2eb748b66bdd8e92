#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "server/rpc/handoff_version.h"
#include "tests/e2e/fleet.h"
#include "tests/testing/certificates.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<grpc::ChannelCredentials> Client(const Certificates& certificates, const std::string& name) {
  const auto file = [&](const char* suffix) { return ReadFile(certificates.Path(name + suffix)); };
  return grpc::SslCredentials({.pem_root_certs = ReadFile(certificates.Path("ca.crt")),
                               .pem_private_key = name.empty() ? "" : file(".key"),
                               .pem_cert_chain = name.empty() ? "" : file(".crt")});
}

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
    options.credentials = Client(certificates_, "client");
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
  EXPECT_EQ(Describe(fleet, Client(certificates_, "client")).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(Describe(fleet, Client(certificates_, "")).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(Describe(fleet, Client(certificates_, "stranger")).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_NE(Describe(fleet, grpc::InsecureChannelCredentials()).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
}

template <typename Service, typename Description>
grpc::StatusCode CodeOfDescribe(int port, const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                                Description* description) {
  const auto stub = Service::NewStub(grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), credentials));
  grpc::ClientContext context;
  v1::DescribeRequest request;
  request.set_protocol_version(kHandoffVersion);
  return stub->Describe(&context, request, description).error_code();
}

// Certificates of one authority, told apart by their names.
class Roles : public Security {
 protected:
  Roles() {
    certificates_.MakeCertificate("decode", "ca", "IP:127.0.0.1,DNS:decode-0.aludel.svc");
    certificates_.MakeCertificate("prefill", "ca", "IP:127.0.0.1,DNS:prefill-0.aludel.svc");
    certificates_.MakeCertificate("gateway", "ca", "URI:spiffe://aludel/gateway");
  }
  FleetOptions Options(const std::string& prefill_identity) {
    FleetOptions options;
    options.prefill = certificates_.Settings("prefill") + "decode_identities: 'decode-0.aludel.svc'\n";
    options.decode = certificates_.Settings("decode") + "gateway_identities: 'spiffe://aludel/gateway'\n" +
                     "prefill_identities: '" + prefill_identity + "'\n";
    options.credentials = Client(certificates_, "gateway");
    return options;
  }
};

TEST_F(Roles, EachServerIsCalledByItsCallersAlone) {
  Fleet fleet(Options("prefill-0.aludel.svc"));
  ASSERT_TRUE(fleet.Start());
  const Answer answer = fleet.Ask(Fleet::Request(Prompt(), 4));
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.started.plan(), "remote") << answer.started.fallback_reason();

  const auto decode = [&](const char* caller) {
    v1::DecodeDescription description;
    return CodeOfDescribe<v1::Decode>(fleet.decode_port(), Client(certificates_, caller), &description);
  };
  EXPECT_EQ(decode("gateway"), grpc::StatusCode::OK);
  EXPECT_EQ(decode("prefill"), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(decode("client"), grpc::StatusCode::PERMISSION_DENIED);
  const auto prefill = [&](const char* caller) {
    v1::PrefillDescription description;
    return CodeOfDescribe<v1::Prefill>(fleet.prefill_port(), Client(certificates_, caller), &description);
  };
  EXPECT_EQ(prefill("decode"), grpc::StatusCode::OK);
  EXPECT_EQ(prefill("gateway"), grpc::StatusCode::PERMISSION_DENIED);

  // Calls that compute, too.
  const auto channel = [&](int port, const char* caller) {
    return grpc::CreateChannel(absl::StrCat("127.0.0.1:", port), Client(certificates_, caller));
  };
  grpc::ClientContext generate;
  const auto answers = v1::Decode::NewStub(channel(fleet.decode_port(), "client"))
                           ->Generate(&generate, Fleet::Request(Prompt(), 4));
  EXPECT_EQ(answers->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  const auto stub = v1::Prefill::NewStub(channel(fleet.prefill_port(), "gateway"));
  grpc::ClientContext run;
  EXPECT_EQ(stub->Run(&run, {})->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
  grpc::ClientContext grant;
  v1::GrantResponse granted;
  EXPECT_EQ(stub->Grant(&grant, {}, &granted).error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

TEST_F(Roles, FramesComeFromPrefillServersAlone) {
  Fleet fleet(Options("*.prefill.svc"));  // which prefill-0.aludel.svc is not
  ASSERT_TRUE(fleet.Start());
  const Answer answer = fleet.Ask(Fleet::Request(Prompt(), 4));
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.started.plan(), "fallback");
  EXPECT_THAT(answer.started.fallback_reason(), HasSubstr("the receiver's data plane cannot be reached"));
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
  while (Describe(fleet, Client(certificates_, "client")).error_code() !=
             grpc::StatusCode::FAILED_PRECONDITION &&
         absl::Now() < limit) {
    absl::SleepFor(absl::Milliseconds(100));
  }
  EXPECT_EQ(Describe(fleet, Client(certificates_, "client")).error_code(),
            grpc::StatusCode::FAILED_PRECONDITION);
  // What is connected stays so; the next connection needs the new certificates.
  ASSERT_TRUE(fleet.StartPrefill());
  EXPECT_TRUE(fleet.WaitPrefillState("ready"));
}

TEST_F(Security, EncryptedFramesGiveTheSameAnswer) {
  FleetOptions options = Options();
  options.decode = "encrypt_frames: true\n";
  options.ucx_transports = "tcp";
  Fleet fleet(options);
  ASSERT_TRUE(fleet.Start());
  v1::GenerateRequest request = Fleet::Request(Prompt(), 6, "");
  request.set_fidelity(v1::FIDELITY_EXACT);
  const Answer local = fleet.Ask(request);
  const Answer answer = fleet.Ask(Fleet::Request(Prompt(), 6));
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.started.plan(), "remote") << answer.started.fallback_reason();
  EXPECT_EQ(answer.tokens, local.tokens);
  const Answer again = fleet.Ask(Fleet::Request(Prompt(), 6));  // from the store, under another key
  EXPECT_EQ(again.started.plan(), "remote") << again.started.fallback_reason();
  EXPECT_EQ(again.tokens, local.tokens);
}

TEST_F(Security, ATamperedFrameIsRefusedAndCounted) {
  FleetOptions options = Options();
  options.decode = "encrypt_frames: true\n";
  options.ucx_transports = "tcp";
  options.link = "corrupt_rate: 0.3";
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
