#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/transport/peer_tls.h"
#include "tests/transport/recording_handler.h"
#include "tests/transport/tcp/raw_socket.h"
#include "transport/open_transport.h"
#include "transport/tcp/tcp_node.h"
#include "transport/tcp/tcp_wire.h"
#include "transport/transport.h"
#include "transport/transport_options.h"
#include "transport/wire.h"

namespace aludel {
namespace {

std::string Bytes(const TcpHead& head) {
  return {reinterpret_cast<const char*>(head.bytes.data()), head.size};
}

// A transport that strangers reach, and a good peer of it.
class TcpHostile : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (GetParam()) options_.tls = PeerTls();
    options_.receive_timeout = absl::Seconds(2);
    receiver_ = *OpenTransport(options_, &handler_);
    options_.accepts = false;
    sender_ = *OpenTransport(options_, &nothing_);
    address_ = *ParseAddress(receiver_->address(), AddressKind::kTcp);
  }

  RawSocket Stranger() const { return RawSocket::ConnectTo(address_.sockets[0].port); }
  std::string Hello() const {
    return Bytes(EncodeTcpHead(TcpFrameType::kHello, address_.endpoint_id, {}, 0));
  }

  // A message of a good peer arrives, whatever has happened before.
  void ExpectAGoodPeerIsServed() {
    auto channel = sender_->Connect(receiver_->address(), absl::Seconds(4));
    ASSERT_TRUE(channel.ok()) << channel.status();
    const std::vector<uint8_t> data = Pattern(300'000, ++good_);
    const size_t before = handler_.arrived();
    (*channel)->Send(AsBytes("good"), data, results_.Expect());
    ASSERT_TRUE(handler_.WaitFor(before + 1));
    ASSERT_TRUE(results_.WaitForAll());
    EXPECT_TRUE(handler_.received().back().payload() == absl::MakeConstSpan(data));
  }

  TransportOptions options_;
  RecordingHandler handler_;
  RecordingHandler nothing_;
  SendResults results_;
  int good_ = 0;
  std::unique_ptr<Transport> receiver_;
  std::unique_ptr<Transport> sender_;
  EndpointAddress address_;
};

// What ends a process that listens with UCX 1.13.1.
TEST_P(TcpHostile, ClosesAConnectionThatSendsZeroes) {
  RawSocket stranger = Stranger();
  stranger.Write(std::string(1000, '\0'));
  EXPECT_TRUE(stranger.WaitClosed(absl::Seconds(2)));
  EXPECT_EQ(handler_.arrived(), 0);
  ExpectAGoodPeerIsServed();
}

TEST_P(TcpHostile, ClosesAConnectionThatSaysNothing) {
  RawSocket stranger = Stranger();
  EXPECT_FALSE(stranger.WaitClosed(absl::Seconds(1)));
  EXPECT_TRUE(stranger.WaitClosed(TcpNode::kHelloLimit));
}

TEST_P(TcpHostile, ServesAGoodPeerAmongAnyNumberOfSilentOnes) {
  std::vector<RawSocket> strangers;
  for (size_t i = 0; i < 3 * TcpNode::kMaxStrangers; ++i) strangers.push_back(Stranger());
  ExpectAGoodPeerIsServed();
}

TEST_P(TcpHostile, SurvivesRandomAndChangedStreams) {
  std::mt19937 random(GetParam() ? 11 : 12);
  const std::vector<uint8_t> payload = Pattern(5000, 1);
  const std::string message =
      Bytes(EncodeTcpHead(TcpFrameType::kData, 0, AsBytes("refuse me"), payload.size())) +
      std::string(payload.begin(), payload.end());
  for (int round = 0; round < 300; ++round) {
    std::string bytes = Hello() + message;
    if (round % 3 == 0) {
      for (char& byte : bytes) byte = static_cast<char>(random());
    } else {
      for (int changes = random() % 3; changes >= 0; --changes) {
        bytes[random() % (round % 3 == 1 ? 64 : bytes.size())] = static_cast<char>(random());
      }
      bytes.resize(random() % bytes.size());
    }
    RawSocket stranger = Stranger();
    ASSERT_TRUE(stranger.connected());
    stranger.Write(bytes);
  }
  ExpectAGoodPeerIsServed();
}

TEST_P(TcpHostile, EndsAConnectAndSendsThatMeetAHostileReceiver) {
  std::mt19937 random(13);
  for (int round = 0; round < 40; ++round) {
    uint16_t port = 0;
    RawSocket listener = RawSocket::Listen(&port);
    EndpointAddress hostile = address_;
    hostile.sockets[0].port = port;
    std::string answer(1000, '\0');
    for (char& byte : answer) byte = static_cast<char>(round == 0 ? 0 : random());
    // A third gets as far as a welcome, and goes on where a receiver is silent.
    if (round % 3 == 1)
      answer = Bytes(EncodeTcpHead(TcpFrameType::kWelcome, hostile.endpoint_id, {}, 0)) + answer;
    if (round % 3 == 2) answer.resize(round);
    std::thread peer([&] {
      RawSocket accepted = listener.Accept();
      accepted.Write(answer);
      accepted.WaitClosed(absl::Milliseconds(20));
    });
    auto channel = sender_->Connect(EncodeAddress(hostile), absl::Milliseconds(500));
    if (channel.ok()) {
      EXPECT_FALSE(GetParam()) << "no certificate, and still connected";
      const std::vector<uint8_t> data = Pattern(1 << 20, 1);
      for (int i = 0; i < 8; ++i) (*channel)->Send(AsBytes("m"), data, results_.Expect());
      EXPECT_TRUE(results_.WaitForAll(absl::Seconds(5)));
    }
    peer.join();
  }
  ExpectAGoodPeerIsServed();
}

INSTANTIATE_TEST_SUITE_P(Kinds, TcpHostile, testing::Bool(),
                         [](const auto& info) { return info.param ? "Tls" : "Plain"; });

TEST(TcpPlain, EndsAMessageWhosePayloadDoesNotCome) {
  RecordingHandler handler;
  TransportOptions options;
  options.receive_timeout = absl::Milliseconds(300);
  const auto receiver = *OpenTransport(options, &handler);
  const EndpointAddress address = *ParseAddress(receiver->address(), AddressKind::kTcp);
  RawSocket slow = RawSocket::ConnectTo(address.sockets[0].port);
  slow.Write(Bytes(EncodeTcpHead(TcpFrameType::kHello, address.endpoint_id, {}, 0)) +
             Bytes(EncodeTcpHead(TcpFrameType::kData, 0, AsBytes("m"), 1000)));
  EXPECT_EQ(slow.Read(64, absl::Milliseconds(100)).size(), sizeof(TcpPrefix));  // the welcome
  EXPECT_TRUE(slow.WaitClosed(absl::Seconds(3)));
  ASSERT_TRUE(handler.WaitFor(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(handler.received()[0].status));
}

TEST(TcpPlain, APayloadOfASlowLinkMayTakeLongerThanTheTimeout) {
  RecordingHandler handler;
  TransportOptions options;
  options.receive_timeout = absl::Milliseconds(300);
  const auto receiver = *OpenTransport(options, &handler);
  const EndpointAddress address = *ParseAddress(receiver->address(), AddressKind::kTcp);
  RawSocket slow = RawSocket::ConnectTo(address.sockets[0].port);
  constexpr size_t kBytes = 250'000;  // two seconds of 1 Mb/s
  slow.Write(Bytes(EncodeTcpHead(TcpFrameType::kHello, address.endpoint_id, {}, 0)) +
             Bytes(EncodeTcpHead(TcpFrameType::kData, 0, AsBytes("m"), kBytes)));
  for (int part = 0; part < 10; ++part) {
    absl::SleepFor(absl::Milliseconds(80));
    ASSERT_TRUE(slow.Write(std::string(kBytes / 10, 'x')));
  }
  ASSERT_TRUE(handler.WaitFor(1));
  EXPECT_TRUE(handler.received()[0].status.ok()) << handler.received()[0].status;
}

TEST(TcpPlain, APayloadThatStopsGetsNoTimeForWhatHasNotCome) {
  RecordingHandler handler;
  TransportOptions options;
  options.receive_timeout = absl::Milliseconds(300);
  const auto receiver = *OpenTransport(options, &handler);
  const EndpointAddress address = *ParseAddress(receiver->address(), AddressKind::kTcp);
  RawSocket slow = RawSocket::ConnectTo(address.sockets[0].port);
  constexpr size_t kBytes = 100'000'000;
  slow.Write(Bytes(EncodeTcpHead(TcpFrameType::kHello, address.endpoint_id, {}, 0)) +
             Bytes(EncodeTcpHead(TcpFrameType::kData, 0, AsBytes("m"), kBytes)) +
             std::string(5'000'000, 'x'));
  ASSERT_TRUE(handler.WaitFor(1, absl::Seconds(10)));  // and not after 40 s
  EXPECT_TRUE(absl::IsDeadlineExceeded(handler.received()[0].status));
}

TEST(TcpPlain, ListensNowhereWhereItOnlyConnects) {
  for (const char* kind : {"tcp", "ucx"}) {
    RecordingHandler handler;
    TransportOptions options;
    options.kind = kind;
    options.accepts = false;
    const auto transport = OpenTransport(options, &handler);
    ASSERT_TRUE(transport.ok()) << transport.status();
    EXPECT_EQ((*transport)->address(), "") << kind;
  }
}

TEST(TcpPlain, ListensWhereItIsTold) {
  RecordingHandler handler;
  TransportOptions options;
  const auto first = *OpenTransport(options, &handler);
  const uint16_t port = ParseAddress(first->address(), AddressKind::kTcp)->sockets[0].port;
  options.listen = absl::StrCat("127.0.0.1:", port);
  EXPECT_EQ(OpenTransport(options, &handler).status().code(), absl::StatusCode::kUnavailable);
  options.listen = "no port";
  EXPECT_EQ(OpenTransport(options, &handler).status().code(), absl::StatusCode::kInvalidArgument);
  options.listen = "0.0.0.0:0";
  const auto everywhere = OpenTransport(options, &handler);
  ASSERT_TRUE(everywhere.ok()) << everywhere.status();
  EXPECT_TRUE((*everywhere)->Connect(first->address(), absl::Seconds(5)).ok());
  EXPECT_TRUE(first->Connect((*everywhere)->address(), absl::Seconds(5)).ok());
}

class TcpCertificates : public testing::Test {
 protected:
  TcpCertificates() : certificates_(absl::StrCat("tcp_certificates_", getpid())) {
    certificates_.MakeAuthority("ca");
    certificates_.MakeAuthority("other-ca");
    certificates_.MakeCertificate("decode", "ca", "DNS:decode-0.aludel.svc,URI:spiffe://aludel/decode");
    certificates_.MakeCertificate("prefill", "ca", "DNS:prefill-0.aludel.svc");
    certificates_.MakeCertificate("stranger", "other-ca", "DNS:prefill-0.aludel.svc");
  }
  std::unique_ptr<Transport> Open(const std::string& name, std::vector<std::string> peers = {}) {
    TransportOptions options;
    options.tls = TlsOf(certificates_, name);
    options.tls.peer_identities = std::move(peers);
    return *OpenTransport(options, &handler_);
  }
  absl::Status Connect(Transport& from, Transport& to) {
    return from.Connect(to.address(), absl::Seconds(3)).status();
  }

  Certificates certificates_;
  RecordingHandler handler_;
};

TEST_F(TcpCertificates, AreAskedOfBothSides) {
  const auto decode = Open("decode");
  const auto stranger = Open("stranger");
  const auto plain = *OpenTransport({}, &handler_);
  EXPECT_TRUE(Connect(*Open("prefill"), *decode).ok());
  EXPECT_EQ(Connect(*stranger, *decode).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Connect(*decode, *stranger).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Connect(*plain, *decode).code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(Connect(*decode, *plain).ok());
}

TEST_F(TcpCertificates, DecideWhoMaySendAndWhoMayReceive) {
  const auto decode = Open("decode", {"*.aludel.svc"});
  const auto strict = Open("decode", {"spiffe://aludel/prefill", "prefill-1.aludel.svc"});
  EXPECT_TRUE(Connect(*Open("prefill", {"spiffe://aludel/decode"}), *decode).ok());
  EXPECT_EQ(Connect(*Open("prefill", {"decode-1.aludel.svc"}), *decode).code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(Connect(*Open("prefill"), *strict).code(), absl::StatusCode::kUnavailable);
}

TEST_F(TcpCertificates, AreReadAgainWhenTheyChange) {
  const auto decode = Open("decode");
  const auto prefill = Open("prefill");
  ASSERT_TRUE(Connect(*prefill, *decode).ok());
  certificates_.MakeAuthority("ca");
  certificates_.MakeCertificate("decode", "ca");
  absl::SleepFor(absl::Milliseconds(100));
  EXPECT_FALSE(Connect(*prefill, *decode).ok());  // its own certificate is of an authority that is gone
  certificates_.MakeCertificate("prefill", "ca");
  absl::SleepFor(absl::Milliseconds(100));
  EXPECT_TRUE(Connect(*prefill, *decode).ok());
}

TEST_F(TcpCertificates, ThatCannotBeUsedAreNamed) {
  TransportOptions options;
  options.tls = TlsOf(certificates_, "decode");
  options.tls.key_file = certificates_.Path("prefill.key");
  const absl::Status status = OpenTransport(options, &handler_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "prefill.key")) << status;
}

}  // namespace
}  // namespace aludel
