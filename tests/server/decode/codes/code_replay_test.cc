#include "server/decode/codes/code_replay.h"

#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"
#include "tests/server/store/store_fixture.h"
#include "transport/open_transport.h"

namespace aludel {
namespace {

class RefuseAll : public MessageHandler {
 public:
  absl::Span<uint8_t> OnHeader(MessageId, absl::Span<const uint8_t>, size_t) override { return {}; }
  void OnPayload(MessageId, absl::Status) override {}
};

// The store has "abcdefghijkl" of prompts of letters, in three chunks of two frames each.
class Replay : public ::testing::Test {
 protected:
  Replay() { PutLetters(store_, "abcdefghijkl"); }

  void Start(const std::string& text, const std::string& salt = "", size_t memory = 4096) {
    prompt_ = Letters(text);
    absl::StatusOr<FrameExtent> extent = arena_->Reserve(memory);
    ASSERT_TRUE(extent.ok()) << extent.status();
    replay_ = std::make_shared<CodeReplay>(
        &codes_, &timer_, CodeReplay::Spec{std::make_shared<const CodecSpec>(FakeSpec()), salt, prompt_},
        *std::move(extent),
        [this](const FrameHeader& header, const std::vector<uint8_t>& header_bytes,
               absl::Span<const uint8_t> payload, std::function<void()> release) {
          EXPECT_TRUE(VerifyFrame(header_bytes, payload).ok());
          absl::MutexLock lock(&mutex_);
          headers_.push_back(header);
          text_.append(payload.begin(), payload.end());
          releases_.push_back(std::move(release));
        });
    replay_->Start([this](const absl::Status& status) { done_.set_value(status); });
  }
  absl::Status Result() {
    EXPECT_EQ(result_.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    return result_.get();
  }
  bool IsDone() { return result_.wait_for(std::chrono::milliseconds(50)) == std::future_status::ready; }
  size_t Delivered() {
    absl::MutexLock lock(&mutex_);
    return headers_.size();
  }
  bool AwaitDelivered(size_t frames) {
    absl::MutexLock lock(&mutex_);
    const auto here = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return headers_.size() >= frames; };
    return mutex_.AwaitWithTimeout(absl::Condition(&here), absl::Seconds(20));
  }
  void ReleaseAll() {
    std::vector<std::function<void()>> releases;
    {
      absl::MutexLock lock(&mutex_);
      releases.swap(releases_);
    }
    for (const auto& release : releases) release();
  }

  RefuseAll refuse_all_;
  std::unique_ptr<Transport> transport_ = *OpenTransport({.kind = "loopback"}, &refuse_all_);
  std::unique_ptr<FrameArena> arena_ = *FrameArena::Create(transport_.get(), 1 << 20);
  PrefixStore store_{{.producer = "received", .memory_bytes = 1 << 20}};
  const KeptCodes codes_{&store_, 1 << 20, [] { return 0.0; }};
  std::vector<int32_t> prompt_;
  absl::Mutex mutex_;
  std::vector<FrameHeader> headers_ ABSL_GUARDED_BY(mutex_);
  std::string text_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> releases_ ABSL_GUARDED_BY(mutex_);
  std::promise<absl::Status> done_;
  std::future<absl::Status> result_ = done_.get_future();
  Timer timer_;
  std::shared_ptr<CodeReplay> replay_;
};

TEST_F(Replay, DeliversTheFramesAsTheyCame) {
  Start("abcdefghijkl");
  EXPECT_TRUE(Result().ok());
  absl::MutexLock lock(&mutex_);
  EXPECT_EQ(text_, "abcdabcdefghefghijklijkl");
  ASSERT_EQ(headers_.size(), 6u);
  EXPECT_EQ(headers_[3].sequence, 3u);
  EXPECT_EQ(headers_[3].coverage.token_begin, 4u);
  EXPECT_EQ(headers_[3].coverage.first_layer, 1);
  EXPECT_EQ(headers_[3].kind, FrameKind::kScd);
  EXPECT_EQ(headers_[3].artifact, ArtifactPrefix(FakeSpec().artifact_hash));
  EXPECT_EQ(store_.stats().hits, 1u);
  EXPECT_EQ(store_.stats().memory.hit_tokens, 12u);
}

TEST_F(Replay, WaitsForRoomAndGoesOnAsFramesAreReleased) {
  Start("abcdefghijkl", "", 3 * FrameRing::kLine);
  ASSERT_TRUE(AwaitDelivered(2));
  EXPECT_FALSE(IsDone());
  const size_t before = Delivered();
  EXPECT_LT(before, 6u);
  while (!IsDone()) ReleaseAll();
  EXPECT_TRUE(Result().ok());
  EXPECT_EQ(Delivered(), 6u);
}

// A small frame behind a large one that began the ring again: what is free before the oldest is less than it looks.
TEST_F(Replay, WaitsForRoomOfSmallFramesBehindLargeOnes) {
  const std::vector<int32_t> prompt = Letters("mnopqrst");
  StorePosition at = store_.Begin(FakeSpec(), "");
  for (const auto& [first, second] : {std::pair(45, 15), std::pair(41, 5)}) {
    const auto begin = static_cast<uint32_t>(at.tokens);
    const auto lines = [](int count) { return std::vector<uint8_t>(count * FrameRing::kLine); };
    ASSERT_TRUE(store_.Put(prompt, begin + 4,
                           {{{0, 1, 0, begin, 4}, lines(first)}, {{1, 1, 0, begin, 4}, lines(second)}}, &at));
  }
  Start("mnopqrst", "", 100 * FrameRing::kLine);
  ASSERT_TRUE(AwaitDelivered(1));
  EXPECT_FALSE(IsDone());
  std::function<void()> release;
  {
    absl::MutexLock lock(&mutex_);
    release = std::exchange(releases_.front(), [] {});
  }
  release();
  EXPECT_FALSE(IsDone());
  while (!IsDone()) ReleaseAll();
  const absl::Status status = Result();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(Delivered(), 4u);
}

TEST_F(Replay, SaysWhatIsMissing) {
  Start("abcdefghmnop");
  const absl::Status status = Result();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), "codes of 4 of 12 tokens are not in this server's store any more");
}

TEST_F(Replay, AnotherSaltHasNone) {
  Start("abcdefghijkl", "bob");
  EXPECT_EQ(Result().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Delivered(), 0u);
}

TEST_F(Replay, StopsWhereItWaitsAndKeepsMemoryUntilItIsRead) {
  Start("abcdefghijkl", "", 3 * FrameRing::kLine);
  ASSERT_TRUE(AwaitDelivered(2));
  replay_->Stop();
  EXPECT_EQ(Result().code(), absl::StatusCode::kCancelled);
  replay_ = nullptr;
  EXPECT_GT(arena_->bytes_reserved(), 0u);
  ReleaseAll();
  EXPECT_EQ(arena_->bytes_reserved(), 0u);
}

}  // namespace
}  // namespace aludel
