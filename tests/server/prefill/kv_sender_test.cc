#include "server/prefill/kv_sender.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/codec/frame.h"
#include "tests/testing/fake_codec.h"
#include "transport/open_transport.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

// Keeps what arrives, in memory of its own.
class Inbox : public MessageHandler {
 public:
  struct Message {
    std::vector<uint8_t> header;
    std::vector<uint8_t> payload;
  };
  absl::Span<uint8_t> OnHeader(MessageId id, absl::Span<const uint8_t> header,
                               size_t payload_bytes) override {
    absl::MutexLock lock(&mutex_);
    Message& message = messages_[id];
    message.header.assign(header.begin(), header.end());
    message.payload.resize(payload_bytes);
    return absl::MakeSpan(message.payload);
  }
  void OnPayload(MessageId, absl::Status) override {}
  std::vector<Message> messages() {
    absl::MutexLock lock(&mutex_);
    std::vector<Message> all;
    for (auto& [id, message] : messages_) all.push_back(message);
    return all;
  }

 private:
  absl::Mutex mutex_;
  std::map<MessageId, Message> messages_;
};

class Sender : public ::testing::Test {
 protected:
  void SetUp() override {
    in_ = *OpenTransport({.kind = "loopback"}, &inbox_);
    out_ = *OpenTransport({.kind = "loopback"}, &unused_);
    arena_ = *FrameArena::Create(out_.get(), 1024);
    connection_ = std::make_shared<PeerConnection>(*out_->Connect(in_->address(), absl::Seconds(10)));
    Use(Make({}));
  }
  void Use(std::shared_ptr<KvSender> sender) {
    lane_ = nullptr;
    sender_ = std::move(sender);
    lane_ = std::make_shared<KvSender::Lane>(sender_);
  }
  std::shared_ptr<KvSender> Make(std::optional<uint64_t> credit, size_t window = 128) {
    return KvSender::Create({.connection = connection_,
                             .window = *arena_->Reserve(window),
                             .ticket = {5},
                             .epoch = 9,
                             .codec = &codec_,
                             .credit = credit,
                             .on_room = [this] { ++rooms_; }},
                            &run_metrics_);
  }
  void TearDown() override {
    lane_.reset();
    sender_.reset();
    connection_->Close();
    arena_.reset();
  }
  absl::Status Ship(uint32_t token, size_t bytes) { return Ship(*lane_, token, bytes); }
  static absl::Status Ship(KvSender::Lane& lane, uint32_t token, size_t bytes) {
    auto memory = lane.Reserve(bytes);
    if (!memory.ok()) return memory.status();
    std::fill(memory->begin(), memory->end(), static_cast<uint8_t>(token));
    return lane.Commit({.token_begin = token, .tokens = 1}, bytes);
  }
  KvSender::Outcome Finish() {
    std::promise<KvSender::Outcome> outcome;
    sender_->Finish([&](const KvSender::Outcome& o) { outcome.set_value(o); });
    return outcome.get_future().get();
  }

  Metrics metrics_;
  PrefillMetrics run_metrics_{&metrics_};
  const CodecSpec codec_ = FakeSpec();
  Inbox inbox_;
  Inbox unused_;
  std::unique_ptr<Transport> in_;
  std::unique_ptr<Transport> out_;
  std::unique_ptr<FrameArena> arena_;
  std::shared_ptr<PeerConnection> connection_;
  std::shared_ptr<KvSender> sender_;
  std::shared_ptr<KvSender::Lane> lane_;
  std::atomic<int> rooms_{0};
};

TEST_F(Sender, FramesArriveWholeAndNumbered) {
  ASSERT_TRUE(Ship(0, 8).ok());
  ASSERT_TRUE(Ship(1, 5).ok());
  const KvSender::Outcome outcome = Finish();
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.frames, 2);
  EXPECT_EQ(outcome.frame_bytes, 2 * kFrameHeaderBytes + 13);
  const auto messages = inbox_.messages();
  ASSERT_EQ(messages.size(), 2);
  for (uint32_t i = 0; i < 2; ++i) {
    const auto header = DecodeFrameHeader(messages[i].header);
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_TRUE(VerifyFrame(messages[i].header, messages[i].payload).ok());
    EXPECT_EQ(header->sequence, i);
    EXPECT_EQ(header->coverage.token_begin, i);
    EXPECT_EQ(header->epoch, 9);
    EXPECT_EQ(header->ticket, (TicketId{5}));
    EXPECT_EQ(header->artifact, ArtifactPrefix("0102030405060708"));
  }
}

TEST_F(Sender, FinishWithoutFramesEndsAtOnce) {
  const KvSender::Outcome outcome = Finish();
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.frames, 0);
}

TEST_F(Sender, AFrameBeyondTheWindowIsAnErrorWithBothNumbers) {
  const absl::Status status = Ship(1, 129);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr("of 128 bytes holds 0, the next frame needs 129"));
}

TEST_F(Sender, MoreThanTheWindowGoesThroughIt) {
  for (uint32_t i = 0; i < 20; ++i) {
    while (!lane_->HasRoom(64, 64)) std::this_thread::yield();
    ASSERT_TRUE(Ship(i, 60).ok());
  }
  EXPECT_TRUE(Finish().status.ok());
  EXPECT_EQ(inbox_.messages().size(), 20);
}

TEST_F(Sender, NothingLeavesBeyondTheCredit) {
  Use(Make(64, 256));
  ASSERT_TRUE(lane_->HasRoom(64, 64));
  ASSERT_TRUE(Ship(0, 10).ok());
  EXPECT_FALSE(lane_->HasRoom(64, 64));
  EXPECT_EQ(rooms_, 0);
  sender_->Grant(100);  // not enough
  EXPECT_EQ(rooms_, 0);
  sender_->Grant(128);
  EXPECT_EQ(rooms_, 1);
  EXPECT_TRUE(lane_->HasRoom(64, 64));
  sender_->Grant(64);  // late: takes nothing back
  EXPECT_TRUE(lane_->HasRoom(64, 64));
  Finish();
  EXPECT_THAT(metrics_.Render(), HasSubstr("aludel_handoff_stalls_total{for=\"receiver\"} 1"));
}

// Stored frames go between those of the engine, which reserves room for one and fills it much later.
TEST_F(Sender, FramesOfAnotherLaneLeaveWhileOneIsMade) {
  KvSender::Lane engine(sender_);
  const auto memory = engine.Reserve(60);
  ASSERT_TRUE(memory.ok());
  ASSERT_TRUE(Ship(1, 8).ok());
  std::fill(memory->begin(), memory->end(), 7);
  ASSERT_TRUE(engine.Commit({.token_begin = 2, .tokens = 1}, 5).ok());
  EXPECT_EQ(Finish().frames, 2);
  const auto messages = inbox_.messages();
  ASSERT_EQ(messages.size(), 2u);
  for (uint32_t i = 0; i < 2; ++i) {
    const auto header = DecodeFrameHeader(messages[i].header);
    EXPECT_EQ(header->sequence, i);
    EXPECT_EQ(header->coverage.token_begin, i + 1);
    EXPECT_TRUE(VerifyFrame(messages[i].header, messages[i].payload).ok());
  }
  EXPECT_EQ(messages[1].payload, std::vector<uint8_t>(5, 7));
}

TEST_F(Sender, RoomThatOneLaneHasIsNoOthers) {
  Use(Make(128, 256));
  KvSender::Lane engine(sender_);
  ASSERT_TRUE(engine.HasRoom(128, 64));
  EXPECT_FALSE(lane_->HasRoom(64, 64));
  ASSERT_TRUE(Ship(engine, 0, 10).ok());  // a line of the two
  EXPECT_FALSE(lane_->HasRoom(64, 64)) << "the other line is kept";
  EXPECT_EQ(rooms_, 0);
  engine.GiveBack();
  EXPECT_EQ(rooms_, 1);
  EXPECT_TRUE(lane_->HasRoom(64, 64));
  ASSERT_TRUE(Ship(1, 10).ok());
  EXPECT_FALSE(lane_->HasRoom(64, 64));
  EXPECT_FALSE(engine.HasRoom(128, 64));
  sender_->Grant(192);  // room for one of them: both ask again
  EXPECT_EQ(rooms_, 2);
  Finish();
}

TEST_F(Sender, WhatIsReservedCountsBeforeItLeaves) {
  Use(Make(128, 256));
  KvSender::Lane engine(sender_);
  ASSERT_TRUE(engine.HasRoom(64, 64));
  ASSERT_TRUE(engine.Reserve(64).ok());
  EXPECT_FALSE(lane_->HasRoom(128, 64));
  ASSERT_TRUE(engine.Commit({.tokens = 1}, 64).ok());
  EXPECT_TRUE(lane_->HasRoom(64, 64));
  Finish();
}

// As a device fills them: the second while the first is still coming.
TEST_F(Sender, FramesThatAreReservedTogetherLeaveInTheirOrder) {
  Use(Make(256, 512));
  ASSERT_TRUE(lane_->HasRoom(192, 64));
  const std::vector<size_t> sizes = {64, 1, 40};
  std::vector<absl::Span<uint8_t>> places;
  for (const size_t bytes : sizes) places.push_back(lane_->Reserve(bytes).value());
  for (uint32_t i = 0; i < sizes.size(); ++i) {
    std::fill(places[i].begin(), places[i].end(), static_cast<uint8_t>(i));
  }
  EXPECT_FALSE(lane_->HasRoom(128, 64)) << "the credit is 256, of which 192 are reserved";
  for (uint32_t i = 0; i < sizes.size(); ++i) {
    ASSERT_TRUE(lane_->Commit({.token_begin = i, .tokens = 1}, sizes[i]).ok());
  }
  EXPECT_TRUE(lane_->HasRoom(64, 64));
  EXPECT_TRUE(Finish().status.ok());
  const auto messages = inbox_.messages();
  ASSERT_EQ(messages.size(), sizes.size());
  for (uint32_t i = 0; i < sizes.size(); ++i) {
    EXPECT_TRUE(VerifyFrame(messages[i].header, messages[i].payload).ok());
    EXPECT_EQ(DecodeFrameHeader(messages[i].header)->coverage.token_begin, i);
    EXPECT_EQ(messages[i].payload, std::vector<uint8_t>(sizes[i], static_cast<uint8_t>(i)));
  }
}

TEST_F(Sender, NobodyHearsOfRoomAfterTheEnd) {
  Use(Make(0));
  EXPECT_FALSE(lane_->HasRoom(64, 64));
  Finish();
  sender_->Grant(1000);
  EXPECT_EQ(rooms_, 0);
}

TEST_F(Sender, AfterAFailedSendNothingMoreIsEncoded) {
  connection_->Close();
  ASSERT_TRUE(Ship(0, 8).ok());
  EXPECT_TRUE(absl::IsCancelled(Ship(1, 8)));
  EXPECT_TRUE(absl::IsCancelled(Finish().status));
}

TEST_F(Sender, MemoryIsHeldUntilTheSenderIsGone) {
  EXPECT_EQ(arena_->bytes_reserved(), 128);
  ASSERT_TRUE(Ship(0, 8).ok());
  Finish();
  lane_.reset();
  sender_.reset();
  // The last send's callback may still be on its way out on the transport's thread.
  connection_->Close();
  EXPECT_EQ(arena_->bytes_reserved(), 0);
}

}  // namespace
}  // namespace aludel
