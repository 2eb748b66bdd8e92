#include <sys/resource.h>

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/transport/peer_tls.h"
#include "tests/transport/recording_handler.h"
#include "transport/open_transport.h"
#include "transport/transport.h"
#include "transport/transport_options.h"

namespace aludel {
namespace {

struct Kind {
  const char* name;
  const char* kind;
  const char* ucx_transports;
  const char* lane;  // that every channel of this kind must use
  bool tls = false;
};

// What every transport promises, whatever carries it: two transports in one process.
class TransportContract : public testing::TestWithParam<Kind> {
 protected:
  TransportOptions Options() const {
    TransportOptions options;
    options.kind = GetParam().kind;
    options.ucx_transports = GetParam().ucx_transports;
    options.ucx_devices = options.kind == "ucx" ? "lo" : "";
    if (GetParam().tls) options.tls = PeerTls();
    return options;
  }

  void OpenBoth(const TransportOptions& options) {
    receiver_ = Open(options, &handler_);
    sender_ = Open(options, &sender_handler_);
    channel_ = Connect();
  }
  void OpenBoth() { OpenBoth(Options()); }

  std::unique_ptr<Transport> Open(const TransportOptions& options, MessageHandler* handler) {
    auto transport = OpenTransport(options, handler);
    EXPECT_TRUE(transport.ok()) << transport.status();
    return transport.ok() ? *std::move(transport) : nullptr;
  }

  std::unique_ptr<Channel> Connect() {
    auto channel = sender_->Connect(receiver_->address(), absl::Seconds(20));
    EXPECT_TRUE(channel.ok()) << channel.status();
    return channel.ok() ? *std::move(channel) : nullptr;
  }

  // Declared so that channels go before transports, and transports before handlers.
  RecordingHandler handler_;
  RecordingHandler sender_handler_;
  SendResults results_;
  std::unique_ptr<Transport> receiver_;
  std::unique_ptr<Transport> sender_;
  std::unique_ptr<Channel> channel_;
};

TEST_P(TransportContract, CarriesPayloadsOfEverySizeInOrder) {
  OpenBoth();
  const std::vector<size_t> sizes = {0, 1, 8, 4096, (64 << 10) + 1, 1 << 20, 9 << 20, 3, 0, 100'000};
  std::vector<std::vector<uint8_t>> payloads;
  for (size_t i = 0; i < sizes.size(); ++i) payloads.push_back(Pattern(sizes[i], i));
  for (size_t i = 0; i < sizes.size(); ++i) {
    channel_->Send(AsBytes(absl::StrCat("message ", i)), payloads[i], results_.Expect());
  }
  ASSERT_TRUE(results_.WaitForAll());
  ASSERT_TRUE(handler_.WaitFor(sizes.size()));
  EXPECT_EQ(results_.Count(absl::StatusCode::kOk), sizes.size());

  uint64_t total = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const RecordingHandler::Received& message = handler_.received()[i];
    EXPECT_EQ(message.header, absl::StrCat("message ", i));
    EXPECT_TRUE(message.status.ok()) << message.status;
    EXPECT_TRUE(message.payload() == absl::MakeConstSpan(payloads[i]))
        << "payload of " << sizes[i] << " bytes";
    total += sizes[i];
  }
  EXPECT_EQ(sender_->stats().messages_sent, sizes.size());
  EXPECT_EQ(sender_->stats().bytes_sent, total);
  EXPECT_EQ(receiver_->stats().messages_received, sizes.size());
  EXPECT_EQ(receiver_->stats().bytes_received, total);
  EXPECT_EQ(receiver_->stats().messages_dropped, 0);
}

TEST_P(TransportContract, DeliversHeadersInOrderWhateverTheSizes) {
  OpenBoth();
  // Short, copied, fragmented and pulled messages take different ways through the transport.
  const std::vector<size_t> sizes = {0, 16, 9000, 200'000, 1, 30'000, 70'000, 64};
  constexpr int kMessages = 400;
  const std::vector<uint8_t> data = Pattern(200'000, 7);
  for (int i = 0; i < kMessages; ++i) {
    channel_->Send(AsBytes(absl::StrCat(i)), absl::MakeConstSpan(data).first(sizes[i % sizes.size()]),
                   results_.Expect());
  }
  ASSERT_TRUE(handler_.WaitFor(kMessages));
  for (int i = 0; i < kMessages; ++i) {
    ASSERT_EQ(handler_.received()[i].header, absl::StrCat(i));
    ASSERT_TRUE(handler_.received()[i].payload() == absl::MakeConstSpan(data).first(sizes[i % sizes.size()]));
  }
  ASSERT_TRUE(results_.WaitForAll());
}

TEST_P(TransportContract, SendsFromAndReceivesIntoRegisteredMemory) {
  OpenBoth();
  auto region = sender_->Allocate(3 << 20);
  ASSERT_TRUE(region.ok()) << region.status();
  ASSERT_EQ((*region)->bytes().size(), 3 << 20);
  const std::vector<uint8_t> data = Pattern(3 << 20, 5);
  std::copy(data.begin(), data.end(), (*region)->bytes().begin());
  channel_->Send({}, (*region)->bytes(), results_.Expect());
  ASSERT_TRUE(handler_.WaitFor(1));
  EXPECT_TRUE(handler_.received()[0].payload() == absl::MakeConstSpan(data));
  ASSERT_TRUE(results_.WaitForAll());
  EXPECT_EQ(sender_->Allocate(0).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(TransportContract, CountsMessagesThatTheHandlerDrops) {
  OpenBoth();
  const std::vector<uint8_t> data = Pattern(2 << 20, 1);
  for (size_t bytes : {size_t{10}, data.size()}) {
    channel_->Send(AsBytes("refuse me"), absl::MakeConstSpan(data).first(bytes), results_.Expect());
  }
  channel_->Send(AsBytes("last"), data, results_.Expect());
  ASSERT_TRUE(handler_.WaitFor(1));
  ASSERT_TRUE(results_.WaitForAll());
  EXPECT_EQ(handler_.arrived(), 1);
  EXPECT_TRUE(handler_.received()[0].payload() == absl::MakeConstSpan(data));
  EXPECT_EQ(receiver_->stats().messages_dropped, 2);
  EXPECT_EQ(receiver_->stats().messages_received, 1);
}

TEST_P(TransportContract, RefusesHeadersThatAreTooLong) {
  OpenBoth();
  const std::string longest(kMaxHeaderBytes, 'h');
  channel_->Send(AsBytes(longest + "h"), {}, results_.Expect());
  EXPECT_EQ(results_.Count(absl::StatusCode::kInvalidArgument), 1);
  channel_->Send(AsBytes(longest), {}, results_.Expect());
  ASSERT_TRUE(handler_.WaitFor(1));
  EXPECT_EQ(handler_.received()[0].header, longest);
  ASSERT_TRUE(results_.WaitForAll());
}

TEST_P(TransportContract, ServesManyThreadsAndChannels) {
  OpenBoth();
  constexpr int kThreads = 6;
  constexpr int kMessages = 60;
  const std::vector<uint8_t> data = Pattern(300'000, 9);
  std::unique_ptr<Channel> second = Connect();
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Channel& channel = t % 2 == 0 ? *channel_ : *second;
      for (int i = 0; i < kMessages; ++i) {
        channel.Send(AsBytes(absl::StrCat(t, "/", i)), absl::MakeConstSpan(data).first(1000 * (i % 300)),
                     results_.Expect());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(results_.WaitForAll());
  ASSERT_TRUE(handler_.WaitFor(kThreads * kMessages));
  EXPECT_EQ(results_.Count(absl::StatusCode::kOk), kThreads * kMessages);
  EXPECT_EQ(sender_->stats().open_channels, 2);

  std::vector<int> next(kThreads, 0);
  for (const RecordingHandler::Received& message : handler_.received()) {
    const int thread = message.header[0] - '0';
    ASSERT_EQ(message.header, absl::StrCat(thread, "/", next[thread]++));
    ASSERT_TRUE(message.status.ok());
  }
}

TEST_P(TransportContract, SendsInBothDirectionsAtOnce) {
  OpenBoth();
  auto back = receiver_->Connect(sender_->address(), absl::Seconds(20));
  ASSERT_TRUE(back.ok()) << back.status();
  const std::vector<uint8_t> data = Pattern(1 << 20, 3);
  for (int i = 0; i < 20; ++i) {
    channel_->Send(AsBytes("there"), data, results_.Expect());
    (*back)->Send(AsBytes("back"), data, results_.Expect());
  }
  EXPECT_TRUE(handler_.WaitFor(20));
  EXPECT_TRUE(sender_handler_.WaitFor(20));
  EXPECT_TRUE(results_.WaitForAll());
}

TEST_P(TransportContract, BoundsTheSendsOfAChannel) {
  TransportOptions options = Options();
  options.max_inflight_sends = 4;
  options.link.bytes_per_second = 1e6;  // nothing ends while we send
  OpenBoth(options);
  const std::vector<uint8_t> data = Pattern(100'000, 2);
  for (int i = 0; i < 10; ++i) channel_->Send({}, data, results_.Expect());
  EXPECT_EQ(results_.Count(absl::StatusCode::kResourceExhausted), 6);
  EXPECT_EQ(sender_->stats().send_failures, 6);
  ASSERT_TRUE(results_.WaitForAll());
  EXPECT_EQ(results_.Count(absl::StatusCode::kOk), 4);
  channel_->Send({}, data, results_.Expect());
  ASSERT_TRUE(results_.WaitForAll());
  EXPECT_EQ(results_.Count(absl::StatusCode::kOk), 5);
}

TEST_P(TransportContract, MaySendAgainFromDone) {
  TransportOptions options = Options();
  options.max_inflight_sends = 1;
  OpenBoth(options);
  const std::vector<uint8_t> data = Pattern(50'000, 2);
  auto last = results_.Expect();
  channel_->Send(AsBytes("first"), data, [&](absl::Status status) {
    EXPECT_TRUE(status.ok()) << status;
    channel_->Send(AsBytes("second"), data, last);
  });
  ASSERT_TRUE(results_.WaitForAll());
  EXPECT_EQ(results_.Count(absl::StatusCode::kOk), 1);
  EXPECT_TRUE(handler_.WaitFor(2));
}

TEST_P(TransportContract, CompletesUnfinishedSendsOnceWhenTheChannelCloses) {
  TransportOptions options = Options();
  options.link.bytes_per_second = 2e6;
  OpenBoth(options);
  const std::vector<uint8_t> data = Pattern(100'000, 2);
  for (int i = 0; i < 50; ++i) channel_->Send({}, data, results_.Expect());
  absl::SleepFor(absl::Milliseconds(120));
  channel_.reset();
  EXPECT_EQ(results_.total(), 50);  // before the destructor has returned
  EXPECT_EQ(results_.repeated(), 0);
  EXPECT_GE(results_.Count(absl::StatusCode::kCancelled), 30);
  EXPECT_EQ(results_.Count(absl::StatusCode::kCancelled) + results_.Count(absl::StatusCode::kOk), 50);
  EXPECT_EQ(sender_->stats().open_channels, 0);
}

TEST_P(TransportContract, CompletesSendsThatAreUnderWayWhenTheChannelCloses) {
  OpenBoth();
  const std::vector<uint8_t> data = Pattern(8 << 20, 2);
  for (int i = 0; i < 32; ++i) channel_->Send({}, data, results_.Expect());
  channel_.reset();
  EXPECT_EQ(results_.total(), 32);
  EXPECT_EQ(results_.repeated(), 0);
  EXPECT_EQ(results_.Count(absl::StatusCode::kCancelled) + results_.Count(absl::StatusCode::kOk), 32);
  // What the receiver had begun ends there too.
  EXPECT_TRUE(handler_.WaitFor(handler_.arrived()));

  channel_ = Connect();
  channel_->Send(AsBytes("again"), data, results_.Expect());
  ASSERT_TRUE(results_.WaitForAll());
  EXPECT_GE(results_.Count(absl::StatusCode::kOk), 1);
}

TEST_P(TransportContract, RefusesBytesThatAreNoAddress) {
  OpenBoth();
  const std::string good = receiver_->address();
  std::vector<std::string> bad = {"", "x", "garbage that is long enough to be an address", good + "x",
                                  good.substr(0, good.size() - 1)};
  for (size_t i = 0; i < 8; ++i) {  // magic, version, kind, count
    bad.push_back(good);
    bad.back()[i] ^= 0x55;
  }
  for (const std::string& address : bad) {
    EXPECT_EQ(sender_->Connect(address, absl::Seconds(5)).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST_P(TransportContract, DoesNotConnectToAPeerThatIsGone) {
  OpenBoth();
  const std::string address = receiver_->address();
  channel_.reset();
  receiver_.reset();
  const absl::Time start = absl::Now();
  const absl::Status status = sender_->Connect(address, absl::Seconds(3)).status();
  EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) << status;
  EXPECT_LT(absl::Now() - start, absl::Seconds(4));
}

TEST_P(TransportContract, DoesNotTakeAnotherEndpointForThePeer) {
  OpenBoth();
  std::string address = receiver_->address();
  address[8] ^= 1;  // the endpoint id
  EXPECT_EQ(sender_->Connect(address, absl::Seconds(5)).status().code(), absl::StatusCode::kUnavailable);
}

TEST_P(TransportContract, NoticesThatThePeerHasClosed) {
  OpenBoth();
  EXPECT_TRUE(channel_->healthy());
  receiver_.reset();
  const absl::Time give_up = absl::Now() + absl::Seconds(10);
  while (channel_->healthy() && absl::Now() < give_up) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_FALSE(channel_->healthy());
  channel_->Send({}, {}, results_.Expect());
  ASSERT_TRUE(results_.WaitForAll());
  EXPECT_EQ(results_.Count(absl::StatusCode::kUnavailable), 1);
}

TEST_P(TransportContract, FailsSendsWhenThePeerClosesUnderThem) {
  OpenBoth();
  const std::vector<uint8_t> data = Pattern(4 << 20, 2);
  for (int i = 0; i < 200; ++i) channel_->Send({}, data, results_.Expect());
  receiver_.reset();
  for (int i = 0; i < 10; ++i) channel_->Send({}, data, results_.Expect());
  ASSERT_TRUE(results_.WaitForAll());
  EXPECT_EQ(results_.repeated(), 0);
  // What the receiver had begun with may have ended well; it was gone before the last ten.
  EXPECT_EQ(results_.Count(absl::StatusCode::kUnavailable) + results_.Count(absl::StatusCode::kOk), 210);
  EXPECT_GE(results_.Count(absl::StatusCode::kUnavailable), 10);
  // Every payload that was accepted has ended; its memory is the handler's again.
  EXPECT_TRUE(handler_.WaitFor(handler_.arrived(), absl::ZeroDuration()));
}

TEST_P(TransportContract, SleepsWhenThereIsNothingToDo) {
  OpenBoth();
  channel_->Send(AsBytes("warm"), {}, results_.Expect());
  ASSERT_TRUE(handler_.WaitFor(1));
  const auto cpu_time = [] {
    rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return absl::DurationFromTimeval(usage.ru_utime) + absl::DurationFromTimeval(usage.ru_stime);
  };
  absl::SleepFor(absl::Milliseconds(50));
  const absl::Duration before = cpu_time();
  absl::SleepFor(absl::Milliseconds(300));
  EXPECT_LT(cpu_time() - before, absl::Milliseconds(50));
}

TEST_P(TransportContract, PacesAChannelToTheEmulatedRate) {
  TransportOptions options = Options();
  options.link.bytes_per_second = 20e6;
  OpenBoth(options);
  const std::vector<uint8_t> data = Pattern(1'000'000, 4);
  const absl::Time start = absl::Now();
  for (int i = 0; i < 8; ++i) channel_->Send({}, data, results_.Expect());
  ASSERT_TRUE(results_.WaitForAll());
  const absl::Duration took = absl::Now() - start;
  EXPECT_GT(took, absl::Milliseconds(390));  // 8 MB at 20 MB/s are 400 ms
  EXPECT_LT(took, absl::Seconds(4));
}

TEST_P(TransportContract, DelaysMessagesOnTheEmulatedLink) {
  TransportOptions options = Options();
  options.link.delay = absl::Milliseconds(150);
  OpenBoth(options);
  const absl::Time start = absl::Now();
  const std::string payload = "x";
  for (int i = 0; i < 20; ++i) channel_->Send({}, AsBytes(payload), results_.Expect());
  ASSERT_TRUE(results_.WaitForAll());
  EXPECT_GE(absl::Now() - start, absl::Milliseconds(150));
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));  // they are on the way together
}

TEST_P(TransportContract, LosesSpoilsAndDoublesMessagesOnlyWhereItIsToldTo) {
  const std::vector<uint8_t> data = Pattern(20'000, 3);
  const auto expect_arrivals = [&](size_t expected, auto change) {
    TransportOptions options = Options();
    change(options.link);
    OpenBoth(options);
    const size_t before = handler_.arrived();
    for (int i = 0; i < 8; ++i) channel_->Send(AsBytes("m"), data, results_.Expect());
    EXPECT_TRUE(results_.WaitForAll());
    EXPECT_TRUE(handler_.WaitFor(before + expected));
    absl::SleepFor(absl::Milliseconds(200));  // and no more
    EXPECT_EQ(sender_->stats().emulated_faults, options.link.has_faults() ? 8 : 0);
    channel_.reset();
    sender_.reset();
    receiver_.reset();
    EXPECT_EQ(handler_.arrived() - before, expected);
  };
  expect_arrivals(8, [](LinkEmulation&) {});
  expect_arrivals(0, [](LinkEmulation& link) { link.drop_rate = 1; });
  expect_arrivals(16, [](LinkEmulation& link) { link.duplicate_rate = 1; });
  expect_arrivals(8, [](LinkEmulation& link) { link.corrupt_rate = 1; });
}

TEST_P(TransportContract, NamesItsLanes) {
  OpenBoth();
  EXPECT_NE(channel_->lanes().find(GetParam().lane), std::string::npos) << channel_->lanes();
}

TEST_P(TransportContract, EndsInEveryOrderThatTheContractAllows) {
  const std::vector<uint8_t> data = Pattern(1 << 20, 4);
  // What is left behind ends in UCX's own time: several looks.
  for (int round = 0; round < 10; ++round) {
    const bool receiver_first = round % 2 != 0;
    OpenBoth();
    for (int i = 0; i < 8; ++i) channel_->Send({}, data, results_.Expect());
    if (receiver_first) receiver_.reset();
    channel_.reset();
    EXPECT_TRUE(results_.WaitForAll(absl::ZeroDuration()));
    sender_.reset();
    receiver_.reset();  // it may have begun to copy from a sender that has left
  }
  EXPECT_EQ(results_.repeated(), 0);
}

INSTANTIATE_TEST_SUITE_P(Kinds, TransportContract,
                         testing::Values(Kind{"Loopback", "loopback", "", "loopback"},
                                         Kind{"Tcp", "tcp", "", "tcp"},
                                         Kind{"TcpTls", "tcp", "", "tls1.3", /*tls=*/true},
                                         Kind{"UcxTcp", "ucx", "tcp", "tcp/lo"},
                                         Kind{"UcxSharedMemory", "ucx", "posix,cma,tcp", "cma/memory"}),
                         [](const auto& info) { return info.param.name; });

TEST(OpenTransport, RefusesOptionsThatMakeNoSense) {
  RecordingHandler handler;
  const auto code = [&handler](auto change) {
    TransportOptions options;
    options.kind = "loopback";
    change(options);
    return OpenTransport(options, &handler).status().code();
  };
  EXPECT_EQ(code([](TransportOptions&) {}), absl::StatusCode::kOk);
  EXPECT_EQ(code([](TransportOptions& o) { o.kind = "pigeon"; }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](TransportOptions& o) { o.max_inflight_sends = 0; }), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](TransportOptions& o) { o.link.bytes_per_second = -1; }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](TransportOptions& o) { o.link.delay = -absl::Seconds(1); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](TransportOptions& o) { o.link.drop_rate = 0.6, o.link.corrupt_rate = 0.6; }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code([](TransportOptions& o) { o.receive_timeout = absl::ZeroDuration(); }),
            absl::StatusCode::kInvalidArgument);
  EXPECT_NE(code([](TransportOptions& o) { o.kind = "ucx", o.ucx_transports = "pigeon"; }),
            absl::StatusCode::kOk);
}

}  // namespace
}  // namespace aludel
