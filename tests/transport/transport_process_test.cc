#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/transport/child_process.h"
#include "tests/transport/peer_kind.h"
#include "tests/transport/peer_tls.h"
#include "tests/transport/recording_handler.h"
#include "transport/open_transport.h"
#include "transport/transport.h"
#include "transport/transport_options.h"

namespace aludel {
namespace {

struct Kind {
  const char* name;
  const char* kind;  // as transport_test_peer knows it
  const char* lane;
};

// What happens to us when the other process is well, is killed, or hangs.
class TransportBetweenProcesses : public testing::TestWithParam<Kind> {
 protected:
  void OpenTransportHere(absl::Duration receive_timeout = absl::Seconds(60)) {
    TransportOptions options = OptionsOf(GetParam().kind, certificates());
    options.receive_timeout = receive_timeout;
    auto transport = OpenTransport(options, &handler_);
    ASSERT_TRUE(transport.ok()) << transport.status();
    transport_ = *std::move(transport);
  }

  void StartReceiver(int count = 0) {
    peer_ = std::make_unique<ChildProcess>(
        "transport_test_peer",
        std::vector<std::string>{"receive", GetParam().kind, certificates(), absl::StrCat(count)});
    address_ = absl::HexStringToBytes(peer_->ReadLine());
    OpenTransportHere();
  }

  void StartSender() {
    peer_ = std::make_unique<ChildProcess>(
        "transport_test_peer", std::vector<std::string>{"send", GetParam().kind, certificates(),
                                                        absl::BytesToHexString(transport_->address())});
  }

  void Connect() {
    auto channel = transport_->Connect(address_, absl::Seconds(20));
    ASSERT_TRUE(channel.ok()) << channel.status();
    channel_ = *std::move(channel);
  }

  // Far more than the pipe to the peer holds; returns when some of it has arrived.
  void SendALot(const std::vector<uint8_t>& data) {
    for (int i = 0; i < kMany; ++i) channel_->Send(AsBytes("1"), data, results_.Expect());
    const absl::Time give_up = absl::Now() + absl::Seconds(20);
    while (results_.total() < 3 && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(1));
    ASSERT_GE(results_.total(), 3);
  }

  // The folder of both processes' certificate.
  static std::string certificates() {
    const std::string file = PeerTls().certificate_file;
    return file.substr(0, file.rfind('/'));
  }

  static constexpr int kMany = 100;
  RecordingHandler handler_;
  SendResults results_;
  std::string address_;
  std::unique_ptr<ChildProcess> peer_;
  std::unique_ptr<Transport> transport_;
  std::unique_ptr<Channel> channel_;
};

TEST_P(TransportBetweenProcesses, CarriesPayloadsUnchanged) {
  StartReceiver(/*count=*/32);
  Connect();
  EXPECT_NE(channel_->lanes().find(GetParam().lane), std::string::npos) << channel_->lanes();
  std::vector<std::vector<uint8_t>> payloads;
  for (size_t bytes : {1, 8, 4096, 8190, 20'000, (64 << 10) + 1, 1 << 20, 9 << 20}) {
    payloads.push_back(Pattern(bytes, payloads.size()));
  }
  for (int repeat = 0; repeat < 4; ++repeat) {
    for (size_t i = 0; i < payloads.size(); ++i) {
      channel_->Send(AsBytes(absl::StrCat(i)), payloads[i], results_.Expect());
    }
  }
  ASSERT_TRUE(results_.WaitForAll());
  EXPECT_EQ(results_.Count(absl::StatusCode::kOk), 32);
  peer_->CloseInput();
  EXPECT_EQ(peer_->ReadLine(), "good 32 bad 0");
}

TEST_P(TransportBetweenProcesses, FailsSendsSoonWhenTheReceiverIsKilled) {
  StartReceiver();
  Connect();
  const std::vector<uint8_t> data = Pattern(4 << 20, 1);
  SendALot(data);
  peer_->Signal(SIGKILL);
  ASSERT_TRUE(results_.WaitForAll(absl::Seconds(4)));
  EXPECT_EQ(results_.repeated(), 0);
  EXPECT_GE(results_.Count(absl::StatusCode::kUnavailable), 1);
  EXPECT_EQ(results_.Count(absl::StatusCode::kUnavailable) + results_.Count(absl::StatusCode::kOk), kMany);
  EXPECT_FALSE(channel_->healthy());
  channel_.reset();
  EXPECT_EQ(transport_->Connect(address_, absl::Seconds(5)).status().code(), absl::StatusCode::kUnavailable);
}

TEST_P(TransportBetweenProcesses, EndsTransfersSoonWhenTheSenderIsKilled) {
  OpenTransportHere();
  StartSender();
  ASSERT_TRUE(handler_.WaitFor(3));
  peer_->Signal(SIGKILL);
  absl::SleepFor(absl::Seconds(1));
  EXPECT_TRUE(handler_.WaitFor(handler_.arrived(), absl::Seconds(3)));
}

TEST_P(TransportBetweenProcesses, GivesUpConnectingToAHungPeerInTime) {
  StartReceiver();
  peer_->Signal(SIGSTOP);
  const absl::Time start = absl::Now();
  const absl::Status status = transport_->Connect(address_, absl::Milliseconds(700)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(690));
  EXPECT_LT(absl::Now() - start, absl::Seconds(3));
  // It comes back, and nothing of the failed attempt stands in the way.
  peer_->Signal(SIGCONT);
  Connect();
}

TEST_P(TransportBetweenProcesses, ClosesAChannelToAHungPeerAtOnce) {
  StartReceiver();
  Connect();
  const std::vector<uint8_t> data = Pattern(4 << 20, 1);
  SendALot(data);
  peer_->Signal(SIGSTOP);
  absl::SleepFor(absl::Milliseconds(100));
  EXPECT_TRUE(channel_->healthy());
  const absl::Time start = absl::Now();
  channel_.reset();
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
  EXPECT_EQ(results_.total(), kMany);
  EXPECT_GE(results_.Count(absl::StatusCode::kCancelled), 1);
  EXPECT_EQ(results_.repeated(), 0);
}

TEST_P(TransportBetweenProcesses, EndsTransfersFromAHungSenderAfterTheReceiveTimeout) {
  OpenTransportHere(/*receive_timeout=*/absl::Seconds(1));
  StartSender();
  ASSERT_TRUE(handler_.WaitFor(3));
  peer_->Signal(SIGSTOP);
  absl::SleepFor(absl::Milliseconds(200));
  EXPECT_TRUE(handler_.WaitFor(handler_.arrived(), absl::Seconds(4)));
}

INSTANTIATE_TEST_SUITE_P(Kinds, TransportBetweenProcesses,
                         testing::Values(Kind{"Tcp", "tcp", "tcp"}, Kind{"TcpTls", "tls", "tls1.3"},
                                         Kind{"UcxTcp", "ucx:tcp", "tcp/lo"},
                                         Kind{"UcxSharedMemory", "ucx:posix,cma,tcp", "cma/memory"}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace aludel
