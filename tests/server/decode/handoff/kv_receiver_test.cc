#include "server/decode/handoff/kv_receiver.h"

#include <algorithm>
#include <future>
#include <optional>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/codec/frame.h"
#include "tests/testing/fake_codec.h"
#include "transport/open_transport.h"
#include "transport/transport_options.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kEpoch = 77;
constexpr TicketId kTicket = {1, 2, 3};

class NoMessages : public MessageHandler {
 public:
  absl::Span<uint8_t> OnHeader(MessageId, absl::Span<const uint8_t>, size_t) override { return {}; }
  void OnPayload(MessageId, absl::Status) override {}
};

// Writes down what it is told.
class Recorder : public TicketOwner {
 public:
  void OnFrameReceived(const FrameHeader& header, std::vector<uint8_t> header_bytes,
                       absl::Span<const uint8_t> payload, std::function<void()> release) override {
    intact = VerifyFrame(header_bytes, payload);
    received.push_back(header);
    releases.push_back(std::move(release));
  }
  void OnTicketLost(const TicketId& ticket, const absl::Status& reason) override {
    lost_tickets.push_back(ticket);
    lost.push_back(reason);
  }
  void OnCreditRaised(const TicketId& ticket, uint64_t credit) override {
    credited.push_back(ticket);
    credits.push_back(credit);
  }

  absl::Status intact;
  std::vector<FrameHeader> received;
  std::vector<std::function<void()>> releases;
  std::vector<absl::Status> lost;
  std::vector<TicketId> lost_tickets;
  std::vector<uint64_t> credits;
  std::vector<TicketId> credited;
};

// A receiver and a sender joined by the loopback transport, a clock that stands still, and one ticket over
// 16 tokens.
class Receiver : public ::testing::Test {
 protected:
  void SetUp() override {
    const TransportOptions loopback{.kind = "loopback"};
    in_ = *OpenTransport(loopback, &receiver_);
    out_ = *OpenTransport(loopback, &no_messages_);
    arena_ = *FrameArena::Create(in_.get(), 4096);
    channel_ = *out_->Connect(in_->address(), absl::Seconds(10));
    OpenTicket(256);
  }

  void TearDown() override {
    receiver_.Close(kTicket, TicketState::kCompleted);
    ReleaseAll();
    channel_.reset();
    arena_.reset();
  }

  void OpenTicket(size_t extent_bytes, std::optional<uint64_t> credit = {}, TicketId id = kTicket) {
    receiver_.Open({.id = id,
                    .deadline = now_ + absl::Seconds(5),
                    .codec = std::make_shared<const CodecSpec>(codec_),
                    .tokens = 16,
                    .extent = *arena_->Reserve(extent_bytes),
                    .credit = credit,
                    .owner = owner_});
  }

  static FrameHeader Frame(uint32_t sequence = 0) {
    FrameHeader header;
    header.kind = FrameKind::kScd;
    header.ticket = kTicket;
    header.epoch = kEpoch;
    header.sequence = sequence;
    header.coverage = {.first_layer = 0, .layers = 1, .token_begin = 0, .tokens = 4};
    header.artifact = ArtifactPrefix("0102030405060708");
    header.payload_bytes = 32;
    return header;
  }

  // Sends and waits until the receiver is through with it.
  void Send(const FrameHeader& header, size_t payload_bytes = 32) {
    const std::vector<uint8_t> payload(payload_bytes, 0xab);
    const auto bytes = EncodeFrameHeader(header, payload);
    SendBytes({bytes.begin(), bytes.end()}, payload);
  }
  void SendBytes(const std::vector<uint8_t>& header, const std::vector<uint8_t>& payload) {
    std::promise<void> done;
    channel_->Send(header, payload, [&](absl::Status) { done.set_value(); });
    done.get_future().wait();
    // `done` may come before the receiver's callbacks have returned; a second message is behind them.
    std::promise<void> behind;
    channel_->Send(std::vector<uint8_t>(8, 0), {}, [&](absl::Status) { behind.set_value(); });
    behind.get_future().wait();
    const absl::Time limit = absl::Now() + absl::Seconds(10);
    ++messages_;
    while (in_->stats().messages_received + in_->stats().messages_dropped < 2 * messages_ &&
           absl::Now() < limit) {
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

  std::string Dropped(const std::string& reason) {
    const std::string name = "aludel_frames_dropped_total{reason=\"" + reason + "\"} ";
    const std::string text = metrics_.Render();
    const size_t at = text.find(name);
    return at == std::string::npos ? "0"
                                   : text.substr(at + name.size(), text.find('\n', at) - at - name.size());
  }

  void ReleaseAll() {
    for (const auto& release : owner_->releases) release();
    owner_->releases.clear();
  }

  Metrics metrics_;
  const CodecSpec codec_ = FakeSpec();
  absl::Time now_ = absl::UnixEpoch();
  KvReceiver receiver_{kEpoch, &metrics_, [this] { return now_; }};
  NoMessages no_messages_;
  std::unique_ptr<Transport> in_;
  std::unique_ptr<Transport> out_;
  std::unique_ptr<FrameArena> arena_;
  std::unique_ptr<Channel> channel_;
  uint64_t messages_ = 0;

  std::shared_ptr<Recorder> owner_ = std::make_shared<Recorder>();
};

TEST_F(Receiver, HandsAWholeFrameToItsOwner) {
  Send(Frame());
  ASSERT_EQ(owner_->received.size(), 1);
  EXPECT_TRUE(owner_->intact.ok()) << owner_->intact;
  EXPECT_EQ(owner_->received[0].coverage.tokens, 4);
  EXPECT_TRUE(owner_->lost.empty());
  const KvReceiver::Usage usage = receiver_.Close(kTicket, TicketState::kCompleted);
  EXPECT_EQ(usage.frames, 1);
  EXPECT_EQ(usage.bytes, kFrameHeaderBytes + 32);
}

TEST_F(Receiver, CountsSecondPartsOfFramesApart) {
  Send(Frame(0));
  now_ += absl::Seconds(1);
  Send(Frame(1));
  now_ += absl::Seconds(1);
  FrameHeader second = Frame(2);
  second.coverage.plane = 1;
  Send(second);
  ASSERT_EQ(owner_->received.size(), 3);
  const std::optional<KvReceiver::Usage> usage = receiver_.UsageOf(kTicket);
  ASSERT_TRUE(usage.has_value());
  EXPECT_EQ(usage->frames, 3);
  EXPECT_EQ(receiver_.ArrivalsOf(kTicket)->frames, 3);
  EXPECT_EQ(usage->bytes, 2 * (kFrameHeaderBytes + 32));
  EXPECT_EQ(usage->upgrade_bytes, kFrameHeaderBytes + 32);
  EXPECT_EQ(usage->last_received - usage->first_received, absl::Seconds(1))
      << "of what the first token waits for";
  EXPECT_EQ(receiver_.UsageOf({9}), std::nullopt);
}

TEST_F(Receiver, DropsFramesOfUnknownTicketsAndOtherLives) {
  FrameHeader foreign = Frame();
  foreign.ticket = {9};
  Send(foreign);
  FrameHeader former = Frame();
  former.epoch = kEpoch - 1;
  Send(former);
  EXPECT_EQ(Dropped("unknown_ticket"), "1");
  EXPECT_EQ(Dropped("epoch"), "1");
  // Whoever sent them cannot end a handoff that is not theirs.
  EXPECT_TRUE(owner_->received.empty());
  EXPECT_TRUE(owner_->lost.empty());
  Send(Frame());
  EXPECT_EQ(owner_->received.size(), 1);
}

TEST_F(Receiver, DropsWhatIsNoFrame) {
  SendBytes({1, 2, 3}, {4});
  SendBytes(std::vector<uint8_t>(kFrameHeaderBytes, 0xff), std::vector<uint8_t>(64));
  EXPECT_TRUE(owner_->received.empty());
  EXPECT_TRUE(owner_->lost.empty());
  EXPECT_EQ(receiver_.unfinished_payloads(), 0);
}

TEST_F(Receiver, DropsADuplicateAndKeepsTheHandoff) {
  Send(Frame(3));
  Send(Frame(3));
  EXPECT_EQ(owner_->received.size(), 1);
  EXPECT_EQ(Dropped("duplicate"), "1");
  EXPECT_TRUE(owner_->lost.empty());
}

TEST_F(Receiver, LosesTheTicketOverAFrameThatIsTooBig) {
  FrameHeader header = Frame();
  header.payload_bytes = 33;  // 4 tokens may have 32
  Send(header, 33);
  EXPECT_EQ(Dropped("oversize"), "1");
  ASSERT_EQ(owner_->lost.size(), 1);
  EXPECT_THAT(std::string(owner_->lost[0].message()),
              HasSubstr("payload is 33 bytes, want at most 32 for 4 tokens"));
  Send(Frame(1));
  EXPECT_EQ(Dropped("unknown_ticket"), "1");
  EXPECT_EQ(owner_->lost.size(), 1);
}

TEST_F(Receiver, LosesTheTicketOverWrongLengthFormatAndCoverage) {
  const auto header = EncodeFrameHeader(Frame(), std::vector<uint8_t>(16));
  SendBytes({header.begin(), header.end()}, std::vector<uint8_t>(24));
  EXPECT_EQ(Dropped("length"), "1");

  OpenTicket(256);
  FrameHeader format = Frame();
  format.artifact[0] ^= 1;
  Send(format);
  EXPECT_EQ(Dropped("format"), "1");

  OpenTicket(256);
  FrameHeader coverage = Frame();
  coverage.coverage.token_begin = 13;  // 4 tokens from there pass the 16
  Send(coverage);
  EXPECT_EQ(Dropped("coverage"), "1");
  EXPECT_EQ(owner_->lost.size(), 3);
  EXPECT_TRUE(owner_->received.empty());
}

TEST_F(Receiver, ATicketCannotTakeMoreThanItsExtent) {
  for (uint32_t i = 0; i < 4; ++i) Send(Frame(i));  // 32 bytes each, on lines of 64
  EXPECT_EQ(owner_->received.size(), 4);
  EXPECT_TRUE(owner_->lost.empty());
  Send(Frame(4));
  EXPECT_EQ(Dropped("arena"), "1");
  ASSERT_EQ(owner_->lost.size(), 1);
  EXPECT_THAT(std::string(owner_->lost[0].message()), HasSubstr("memory of 256 holds 256"));
}

TEST_F(Receiver, MoreThanTheWindowComesThroughIt) {
  receiver_.Close(kTicket, TicketState::kAbandoned);
  OpenTicket(256, 192);
  for (uint32_t i = 0; i < 40; ++i) {
    Send(Frame(i));
    ASSERT_EQ(owner_->received.size(), i + 1) << i;
    ReleaseAll();
  }
  EXPECT_TRUE(owner_->lost.empty());
  // Of the four lines of the window three may be under way; each that was released makes room for one more.
  ASSERT_EQ(owner_->credits.size(), 40);
  EXPECT_EQ(owner_->credits.front(), 192 + 64);
  EXPECT_EQ(owner_->credits.back(), 192 + 40 * 64);
  EXPECT_EQ(arena_->bytes_reserved(), 256);
}

TEST_F(Receiver, WhoReadsNothingStallsNobodyElse) {
  constexpr TicketId kOther = {7};
  receiver_.Close(kTicket, TicketState::kAbandoned);
  OpenTicket(256, 192);
  OpenTicket(256, 192, kOther);
  for (uint32_t i = 0; i < 3; ++i) Send(Frame(i));
  const std::vector<std::function<void()>> unread = std::exchange(owner_->releases, {});
  for (uint32_t i = 0; i < 20; ++i) {
    FrameHeader header = Frame(i);
    header.ticket = kOther;
    Send(header);
    ReleaseAll();
  }
  EXPECT_EQ(owner_->received.size(), 23);
  EXPECT_EQ(owner_->credits.size(), 20);
  EXPECT_TRUE(owner_->lost.empty());
  receiver_.Close(kOther, TicketState::kCompleted);
  for (const auto& release : unread) release();
}

TEST_F(Receiver, AGapInAWindowedTicketEndsIt) {
  receiver_.Close(kTicket, TicketState::kAbandoned);
  OpenTicket(256, 192);
  Send(Frame(0));
  Send(Frame(0));
  EXPECT_EQ(Dropped("duplicate"), "1");
  EXPECT_TRUE(owner_->lost.empty());
  Send(Frame(2));
  EXPECT_EQ(Dropped("gap"), "1");
  ASSERT_EQ(owner_->lost.size(), 1);
  EXPECT_THAT(std::string(owner_->lost[0].message()), HasSubstr("frame 2 has come, frame 1 is missing"));
}

TEST_F(Receiver, AWindowIsWholeAgainOnceItsTicketHasEnded) {
  receiver_.Close(kTicket, TicketState::kAbandoned);
  OpenTicket(256, 192);
  Send(Frame(0));
  receiver_.Close(kTicket, TicketState::kAbandoned);
  ReleaseAll();
  EXPECT_EQ(arena_->bytes_reserved(), 0);
}

TEST_F(Receiver, MemoryIsQuarantinedUntilItsLastReaderIsDone) {
  Send(Frame());
  receiver_.Close(kTicket, TicketState::kCompleted);
  EXPECT_EQ(arena_->bytes_reserved(), 256);
  ReleaseAll();
  EXPECT_EQ(arena_->bytes_reserved(), 0);
}

TEST_F(Receiver, DropsLateFramesAndReapsOnTheClock) {
  now_ += absl::Seconds(4);
  receiver_.Reap();
  EXPECT_EQ(receiver_.open_tickets(), 1);
  now_ += absl::Seconds(1);
  Send(Frame());
  EXPECT_EQ(Dropped("late"), "1");
  EXPECT_TRUE(owner_->lost.empty());
  receiver_.Reap();
  receiver_.Reap();
  ASSERT_EQ(owner_->lost.size(), 1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(owner_->lost[0]));
  EXPECT_EQ(receiver_.open_tickets(), 0);
  EXPECT_EQ(arena_->bytes_reserved(), 0);
}

TEST_F(Receiver, TellsWhichTicketIsMeant) {
  constexpr TicketId kOther = {7};
  OpenTicket(256, 192, kOther);
  FrameHeader header = Frame();
  header.ticket = kOther;
  Send(header);
  ReleaseAll();
  EXPECT_THAT(owner_->credited, ElementsAre(kOther));
  header.sequence = 3;  // frame 1 is missing
  Send(header);
  EXPECT_THAT(owner_->lost_tickets, ElementsAre(kOther));
  EXPECT_EQ(receiver_.open_tickets(), 1);
}

TEST_F(Receiver, AFrameIsUnderWayFromItsHeaderToItsLastByte) {
  const auto under_way = [&] { return receiver_.ArrivalsOf(kTicket)->more_under_way; };
  Send(Frame(0));
  EXPECT_FALSE(under_way());
  const std::vector<uint8_t> payload(32, 0xab);
  const auto header = EncodeFrameHeader(Frame(1), payload);
  const absl::Span<uint8_t> place = receiver_.OnHeader(/*id=*/999, header, payload.size());
  ASSERT_EQ(place.size(), payload.size());
  EXPECT_TRUE(under_way());
  EXPECT_EQ(receiver_.ArrivalsOf(kTicket)->frames, 1);
  std::copy(payload.begin(), payload.end(), place.begin());
  receiver_.OnPayload(999, absl::OkStatus());
  EXPECT_FALSE(under_way());
  EXPECT_EQ(receiver_.ArrivalsOf(kTicket)->frames, 2);
  receiver_.Close(kTicket, TicketState::kCompleted);
  EXPECT_FALSE(receiver_.ArrivalsOf(kTicket).has_value());
}

TEST_F(Receiver, FramesForAnOwnerThatHasGoneAreReleased) {
  receiver_.Close(kTicket, TicketState::kAbandoned);
  OpenTicket(256, 192);
  const std::weak_ptr<Recorder> gone = owner_;
  owner_ = std::make_shared<Recorder>();
  ASSERT_TRUE(gone.expired());
  for (uint32_t i = 0; i < 40; ++i) Send(Frame(i));  // ten times what the window holds
  EXPECT_EQ(receiver_.ArrivalsOf(kTicket)->frames, 40);
  Send(Frame(41));
  EXPECT_EQ(Dropped("gap"), "1");
  EXPECT_EQ(receiver_.open_tickets(), 0);
  EXPECT_EQ(arena_->bytes_reserved(), 0);
}

TEST_F(Receiver, ACorruptedFrameIsTheOwnersToRefuse) {
  const std::vector<uint8_t> payload(32, 1);
  const auto header = EncodeFrameHeader(Frame(), payload);
  std::vector<uint8_t> other = payload;
  other[5] ^= 0x10;
  SendBytes({header.begin(), header.end()}, other);
  ASSERT_EQ(owner_->received.size(), 1);
  EXPECT_TRUE(absl::IsDataLoss(owner_->intact));
}

}  // namespace
}  // namespace aludel
