#include "server/prefill/upgrade_queue.h"

#include <algorithm>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/prefill/kv_sender.h"
#include "tests/testing/fake_codec.h"
#include "transport/open_transport.h"

namespace aludel {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

// Keeps what arrives, in order.
class Inbox : public MessageHandler {
 public:
  absl::Span<uint8_t> OnHeader(MessageId id, absl::Span<const uint8_t> header,
                               size_t payload_bytes) override {
    absl::MutexLock lock(&mutex_);
    auto& [coverage, payload] = frames_[id];
    coverage = DecodeFrameHeader(header)->coverage;
    payload.resize(payload_bytes);
    return absl::MakeSpan(payload);
  }
  void OnPayload(MessageId /*id*/, absl::Status /*status*/) override {}
  std::vector<std::pair<FrameCoverage, std::vector<uint8_t>>> frames() {
    absl::MutexLock lock(&mutex_);
    std::vector<std::pair<FrameCoverage, std::vector<uint8_t>>> all;
    for (auto& [id, frame] : frames_) all.push_back(frame);
    return all;
  }

 private:
  absl::Mutex mutex_;
  std::map<MessageId, std::pair<FrameCoverage, std::vector<uint8_t>>> frames_;
};

// Three planes, each with its length in front (FORMAT.md, embedded); `mark` is in all of them.
std::vector<uint8_t> Whole(uint8_t mark) { return {3, mark, 1, 2, 2, mark, 4, 1, mark}; }
std::vector<uint8_t> First(uint8_t mark) { return {3, mark, 1, 2}; }
std::vector<uint8_t> Second(uint8_t mark) { return {2, mark, 4, 1, mark}; }

class Upgrades : public ::testing::Test {
 protected:
  void SetUp() override {
    in_ = *OpenTransport({.kind = "loopback"}, &inbox_);
    out_ = *OpenTransport({.kind = "loopback"}, &unused_);
    arena_ = *FrameArena::Create(out_.get(), 4096);
    connection_ = std::make_shared<PeerConnection>(*out_->Connect(in_->address(), absl::Seconds(10)));
    sender_ = Make(std::nullopt);
    lane_ = std::make_shared<KvSender::Lane>(sender_);
    first_ = queue_->FirstParts(lane_);
  }
  void TearDown() override {
    first_ = nullptr;
    lane_ = nullptr;
    sender_ = nullptr;
    connection_->Close();
    arena_ = nullptr;
  }
  std::shared_ptr<KvSender> Make(std::optional<uint64_t> credit) {
    return KvSender::Create({.connection = connection_,
                             .window = *arena_->Reserve(1024),
                             .ticket = {5},
                             .epoch = 9,
                             .codec = &codec_,
                             .credit = credit,
                             .on_room = [this] { queue_->OnRoom(); }},
                            &run_metrics_);
  }
  absl::Status Ship(uint32_t token, const std::vector<uint8_t>& payload) {
    auto memory = first_->Reserve(payload.size() + 7);  // more than it takes
    if (!memory.ok()) return memory.status();
    std::copy(payload.begin(), payload.end(), memory->begin());
    return first_->Commit({.first_layer = 1, .layers = 2, .token_begin = token, .tokens = 1}, payload.size());
  }
  // Both on the queue's way to its end.
  void Send() {
    queue_->Send(sender_, [this] { done_.set_value(); });
  }
  bool Done() { return done_.get_future().wait_for(std::chrono::minutes(1)) == std::future_status::ready; }
  KvSender::Outcome Finish() {
    std::promise<KvSender::Outcome> outcome;
    sender_->Finish([&](const KvSender::Outcome& o) { outcome.set_value(o); });
    return outcome.get_future().get();
  }

  Metrics metrics_;
  PrefillMetrics run_metrics_{&metrics_};
  const CodecSpec codec_ = FakeSpec();
  Inbox inbox_, unused_;
  std::unique_ptr<Transport> in_, out_;
  std::unique_ptr<FrameArena> arena_;
  std::shared_ptr<PeerConnection> connection_;
  std::shared_ptr<KvSender> sender_;
  std::shared_ptr<KvSender::Lane> lane_;
  Timer timer_;
  std::shared_ptr<UpgradeQueue> queue_ = std::make_shared<UpgradeQueue>(/*base_planes=*/1, &timer_);
  std::shared_ptr<FrameSink> first_;
  std::promise<void> done_;
};

TEST_F(Upgrades, SecondPartsLeaveBehindAllFirstOnesInTheirOrder) {
  constexpr uint32_t kFrames = 9;
  for (uint32_t i = 0; i < kFrames; ++i) ASSERT_TRUE(Ship(i, Whole(static_cast<uint8_t>(10 + i))).ok());
  Send();
  ASSERT_TRUE(Done());
  const KvSender::Outcome outcome = Finish();
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_EQ(outcome.frames, 2 * kFrames);
  const auto frames = inbox_.frames();
  ASSERT_EQ(frames.size(), 2 * kFrames);
  for (uint32_t i = 0; i < 2 * kFrames; ++i) {
    const auto& [coverage, payload] = frames[i];
    const auto mark = static_cast<uint8_t>(10 + i % kFrames);
    EXPECT_THAT(payload, ElementsAreArray(i < kFrames ? First(mark) : Second(mark))) << i;
    EXPECT_EQ(coverage.plane, i < kFrames ? 0 : 1) << i;
    EXPECT_EQ(coverage.first_layer, 1);
    EXPECT_EQ(coverage.layers, 2);
    EXPECT_EQ(coverage.token_begin, i % kFrames);
  }
}

TEST_F(Upgrades, FramesThatAreReservedTogetherAreSplitInTheirOrder) {
  std::vector<absl::Span<uint8_t>> places;
  for (const uint8_t mark : {1, 2, 3}) {
    places.push_back(first_->Reserve(Whole(mark).size()).value());
    const std::vector<uint8_t> whole = Whole(mark);
    std::copy(whole.begin(), whole.end(), places.back().begin());
  }
  for (uint32_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(first_->Commit({.layers = 2, .token_begin = i, .tokens = 1}, Whole(1).size()).ok());
  }
  Send();
  ASSERT_TRUE(Done());
  EXPECT_TRUE(Finish().status.ok());
  const auto frames = inbox_.frames();
  ASSERT_EQ(frames.size(), 6u);
  for (uint32_t i = 0; i < 6; ++i) {
    const auto mark = static_cast<uint8_t>(1 + i % 3);
    EXPECT_THAT(frames[i].second, ElementsAreArray(i < 3 ? First(mark) : Second(mark))) << i;
    EXPECT_EQ(frames[i].first.token_begin, i % 3);
  }
}

TEST_F(Upgrades, WaitForCreditAndGoOnWithIt) {
  lane_ = nullptr;
  first_ = nullptr;
  sender_ = Make(3 * 64);
  lane_ = std::make_shared<KvSender::Lane>(sender_);
  first_ = queue_->FirstParts(lane_);
  for (uint32_t i = 0; i < 2; ++i) ASSERT_TRUE(Ship(i, Whole(10)).ok());
  Send();
  // The first three frames have credit, the last has not.
  while (inbox_.frames().size() < 3) absl::SleepFor(absl::Milliseconds(1));
  absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(inbox_.frames().size(), 3u);
  sender_->Grant(4 * 64);
  ASSERT_TRUE(Done());
  EXPECT_EQ(Finish().frames, 4u);
}

TEST_F(Upgrades, AfterStopNoneLeaves) {
  for (uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(Ship(i, Whole(10)).ok());
  queue_->Stop();
  ASSERT_TRUE(Ship(3, Whole(10)).ok());
  Send();
  ASSERT_TRUE(Done());
  EXPECT_EQ(Finish().frames, 4u) << "first parts";
}

TEST_F(Upgrades, OfABrokenConnectionEnd) {
  for (uint32_t i = 0; i < 2; ++i) ASSERT_TRUE(Ship(i, Whole(10)).ok());
  connection_->Close();
  Send();
  ASSERT_TRUE(Done());
  EXPECT_FALSE(Finish().status.ok());
}

TEST_F(Upgrades, APayloadWithoutASecondPartIsRefused) {
  const absl::Status refused = Ship(0, First(10));
  EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(refused.ToString(), HasSubstr("has no plane behind the first 1"));
}

}  // namespace
}  // namespace aludel
