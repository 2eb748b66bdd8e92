#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "server/rpc/handoff_version.h"
#include "tests/e2e/fleet.h"
#include "tests/testing/certificates.h"
#include "tests/transport/tcp/raw_socket.h"
#include "transport/tcp/tcp_wire.h"
#include "transport/wire.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

std::string Bytes(const TcpHead& head) {
  return {reinterpret_cast<const char*>(head.bytes.data()), head.size};
}

std::string RandomBytes(std::mt19937& random, size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

// Real servers, and this test as what else reaches their data plane: anything that can connect to a decode
// server, and receivers that a caller names to a prefill server. With grpc_tls or without.
class DataPlane : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    for (int i = 0; i < 100; ++i) prompt_.push_back(10 + (i * 37) % 2000);
    FleetOptions options;
    if (GetParam()) {
      certificates_.MakeAuthority("ca");
      certificates_.MakeCertificate("server", "ca");
      options.both = certificates_.Settings("server");
      const auto file = [&](const char* name) { return ReadFile(certificates_.Path(name)); };
      options.credentials = grpc::SslCredentials({.pem_root_certs = file("ca.crt"),
                                                  .pem_private_key = file("server.key"),
                                                  .pem_cert_chain = file("server.crt")});
    }
    fleet_ = std::make_unique<Fleet>(options);
    ASSERT_TRUE(fleet_->Start());
    prefill_ = v1::Prefill::NewStub(
        grpc::CreateChannel(absl::StrCat("127.0.0.1:", fleet_->prefill_port()), options.credentials));
  }

  void ExpectAGoodHandoff() {
    const Answer answer = fleet_->Ask(Fleet::Request(prompt_, 4));
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.started.plan(), "remote") << answer.started.fallback_reason();
    EXPECT_TRUE(fleet_->DecodeIsIdle());
    EXPECT_TRUE(fleet_->PrefillIsIdle());
  }

  static std::string Address(uint16_t port, std::array<uint8_t, 4> ip = {127, 0, 0, 1}) {
    SocketEntry socket = {.family = 4, .reserved = 0, .port = port, .ip = {}};
    std::copy(ip.begin(), ip.end(), socket.ip.begin());
    return EncodeAddress({.kind = AddressKind::kTcp, .endpoint_id = 77, .sockets = {socket}});
  }

  // What a caller learns of a run whose frames shall go to `address`.
  grpc::Status Run(const std::string& address) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    v1::RunRequest request;
    request.mutable_prompt()->Add(prompt_.begin(), prompt_.end());
    request.mutable_ticket()->set_id(absl::StrCat("ticket-", 100000000 + ++tickets_));
    request.mutable_ticket()->set_receiver_address(address);
    request.mutable_ticket()->mutable_format()->set_name("raw");
    const auto reader = prefill_->Run(&context, request);
    v1::RunEvent event;
    while (reader->Read(&event)) {
    }
    return reader->Finish();
  }
  grpc::Status Describe(const std::string& address) {
    grpc::ClientContext context;
    v1::DescribeRequest request;
    request.set_protocol_version(kHandoffVersion);
    request.set_receiver_address(address);
    v1::PrefillDescription description;
    return prefill_->Describe(&context, request, &description);
  }

  Certificates certificates_{absl::StrCat("data_plane_test_", getpid())};
  std::vector<int32_t> prompt_;
  int tickets_ = 0;
  std::unique_ptr<Fleet> fleet_;
  std::unique_ptr<v1::Prefill::Stub> prefill_;
};

TEST_P(DataPlane, OfADecodeServerSurvivesWhateverConnectsToIt) {
  std::mt19937 random(3);
  const std::string hello = Bytes(EncodeTcpHead(TcpFrameType::kHello, 77, {}, 0));
  const std::string data = Bytes(EncodeTcpHead(TcpFrameType::kData, 0, {}, 100));
  for (int round = 0; round < 300; ++round) {
    std::string bytes(1000, '\0');  // with UCX 1.13.1 these alone end the process
    if (round % 3 == 1) bytes = RandomBytes(random, 1 + random() % 4000);
    if (round % 3 == 2) {
      bytes = hello + data + RandomBytes(random, 200);
      bytes[random() % 96] = static_cast<char>(random());
      bytes.resize(1 + random() % bytes.size());
    }
    RawSocket stranger = RawSocket::ConnectTo(static_cast<uint16_t>(fleet_->data_plane_port()));
    ASSERT_TRUE(stranger.connected()) << "after " << round;
    stranger.Write(bytes);
    if (round % 50 == 0) {
      EXPECT_TRUE(stranger.WaitClosed(absl::Seconds(7))) << round;
    }
  }
  ExpectAGoodHandoff();
}

TEST_P(DataPlane, OfAPrefillServerSurvivesWhateverReceiverItIsTold) {
  std::mt19937 random(4);
  for (int round = 0; round < 12; ++round) {
    uint16_t port = 0;
    RawSocket listener = RawSocket::Listen(&port);
    std::string answer(1000, '\0');
    if (round % 3 == 1) answer = RandomBytes(random, 1 + random() % 4000);
    if (round % 3 == 2)
      answer = Bytes(EncodeTcpHead(TcpFrameType::kWelcome, 77, {}, 0)) + RandomBytes(random, 100);
    std::thread receiver([&] {
      RawSocket accepted = listener.Accept();
      accepted.Write(answer);
      accepted.WaitClosed(absl::Seconds(1));
    });
    EXPECT_FALSE(Run(Address(port)).ok()) << round;
    receiver.join();
  }
  ExpectAGoodHandoff();
}

TEST_P(DataPlane, TellsNoCallerWhyAReceiverCannotBeReached) {
  uint16_t closed = 0;
  { RawSocket listener = RawSocket::Listen(&closed); }
  uint16_t silent = 0;
  RawSocket listener = RawSocket::Listen(&silent);
  const grpc::Status of_closed = Run(Address(closed));
  const grpc::Status of_silent = Run(Address(silent));
  EXPECT_EQ(of_closed.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(of_closed.error_code(), of_silent.error_code());
  EXPECT_EQ(of_closed.error_message(), of_silent.error_message());
  EXPECT_THAT(fleet_->prefill().Log(), HasSubstr("cannot connect to a receiver"));
  ExpectAGoodHandoff();
}

TEST_P(DataPlane, OfAPrefillServerGoesOnlyWhereItsCallerIs) {
  const std::string elsewhere = Address(80, {192, 0, 2, 1});
  EXPECT_EQ(Run(elsewhere).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(Describe(elsewhere).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(Run(elsewhere).error_message(), HasSubstr("receiver_addresses"));
  ExpectAGoodHandoff();
}

INSTANTIATE_TEST_SUITE_P(Over, DataPlane, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Tls" : "Plain"; });

}  // namespace
}  // namespace aludel
