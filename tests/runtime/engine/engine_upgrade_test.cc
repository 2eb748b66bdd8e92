// Frames in two parts: what the second ones do to the cache of an answer that goes on, and to who shares it.

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/codec/open_codec.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/engine_options.h"
#include "tests/runtime/engine/engine_fixture.h"

namespace aludel::engine_testing {
namespace {

using ::testing::HasSubstr;

// "raw" in two parts: first the numbers without their mantissas, then as they are.
class TwoPartDecoders : public DecoderFactory {
 public:
  explicit TwoPartDecoders(std::unique_ptr<DecoderFactory> raw)
      : DecoderFactory(SpecOf(raw->spec()), raw->flops_per_token()), raw_(std::move(raw)) {}
  absl::StatusOr<std::unique_ptr<KvDecoder>> NewDecoder() const override {
    return std::make_unique<Decoder>(raw_->NewDecoder().value());
  }

 private:
  class Decoder : public KvDecoder {
   public:
    explicit Decoder(std::unique_ptr<KvDecoder> raw) : raw_(std::move(raw)) {}
    absl::Status Begin(const KvTarget& target) override { return raw_->Begin(target); }
    absl::Status Apply(const FrameCoverage& coverage, absl::Span<const uint8_t> payload,
                       const KvTarget& target) override {
      FrameCoverage whole = coverage;
      whole.plane = 0;
      return raw_->Apply(whole, payload, target);
    }

   private:
    const std::unique_ptr<KvDecoder> raw_;
  };
  static CodecSpec SpecOf(CodecSpec spec) {
    spec.name = "raw@1+";
    spec.base_planes = 1;
    return spec;
  }
  const std::unique_ptr<DecoderFactory> raw_;
};

class UpgradeRecorder : public Recorder {
 public:
  void OnUpgraded(const absl::Status& status, int64_t completion_tokens) override {
    std::lock_guard<std::mutex> lock(mutex_);
    EXPECT_FALSE(status_.has_value()) << "twice";
    status_ = status;
    completion_tokens_ = completion_tokens;
    changed_.notify_all();
  }
  std::optional<absl::Status> WaitUpgraded() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait_for(lock, kPatience, [this] { return status_.has_value(); });
    return status_;
  }
  std::optional<absl::Status> upgraded() {
    std::lock_guard<std::mutex> lock(mutex_);
    return status_;
  }
  int64_t completion_tokens() {
    std::lock_guard<std::mutex> lock(mutex_);
    return completion_tokens_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<absl::Status> status_;
  int64_t completion_tokens_ = -1;
};

class EngineUpgradeTest : public EngineTest {
 protected:
  static constexpr int kAnswer = 60;

  EngineUpgradeTest() {
    handed_over_ = static_cast<int64_t>(question_.prompt.size()) - 1;
    second_ = PrefillFrames(*OpenEncoders("raw", "", *model_).value(), question_, handed_over_);
    first_ = second_;
    for (FrameStore::Frame& frame : first_) {
      for (size_t i = 0; i + 1 < frame.payload.size(); i += 2) {
        uint16_t number = 0;
        std::memcpy(&number, &frame.payload[i], sizeof(number));
        number &= 0xff80;
        std::memcpy(&frame.payload[i], &number, sizeof(number));
      }
    }
    Number(/*plane=*/0, &first_);
    Number(/*plane=*/1, &second_);
    Restart({.kv_blocks = 256, .max_num_batched_tokens = 128});
  }

  static void Number(int plane, std::vector<FrameStore::Frame>* frames) {
    for (FrameStore::Frame& frame : *frames) {
      FrameHeader header = DecodeFrameHeader(frame.header).value();
      header.coverage.plane = static_cast<uint16_t>(plane);
      const auto bytes = EncodeFrameHeader(header, frame.payload);
      frame.header.assign(bytes.begin(), bytes.end());
    }
  }
  std::shared_ptr<UpgradeRecorder> Begin(int max_tokens = kAnswer) {
    auto recorder = std::make_shared<UpgradeRecorder>();
    const SamplingParams sampling = {.max_tokens = max_tokens, .ignore_eos = true, .top_logprobs = 0};
    id_ = engine_->Generate({question_.prompt, sampling, kNever, &codec_, handed_over_}, recorder).value();
    return recorder;
  }
  void Give(const std::vector<FrameStore::Frame>& frames, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      engine_->ApplyFrame(id_, DecodeFrameHeader(frames[i].header).value(), frames[i].header,
                          frames[i].payload, [this] { ++released_; });
    }
  }
  void Give(const std::vector<FrameStore::Frame>& frames) { Give(frames, 0, frames.size()); }
  int64_t Cached(const std::vector<int32_t>& tokens) const {
    return engine_->CachedTokens(tokens, &codec_.spec(), "");
  }
  int64_t shared() const { return handed_over_ / 16 * 16; }

  const Question question_ = Questions(1)[0];
  int64_t handed_over_ = 0;
  std::vector<FrameStore::Frame> first_, second_;
  const TwoPartDecoders codec_{OpenDecoders("raw", "", *model_).value()};
  SequenceId id_ = 0;
  std::atomic<size_t> released_{0};
};

TEST_F(EngineUpgradeTest, SecondPartsAreInTheCacheOfAnAnswerThatGoesOnAndThenForOthers) {
  const auto recorder = Begin();
  Give(first_);
  ASSERT_TRUE(recorder->WaitTokens(3));
  EXPECT_EQ(Cached(question_.prompt), 0) << "a coarse block is for no other";
  Give(second_);
  ASSERT_TRUE(recorder->WaitUpgraded().has_value());
  EXPECT_TRUE(recorder->upgraded()->ok()) << *recorder->upgraded();
  EXPECT_GE(recorder->completion_tokens(), 3);
  ASSERT_TRUE(recorder->WaitDone());
  EXPECT_TRUE(recorder->status().ok()) << recorder->status();
  EXPECT_FALSE(recorder->result().fell_back);
  ASSERT_EQ(recorder->tokens().size(), kAnswer);
  EXPECT_EQ(released_, first_.size() + second_.size());

  // What was computed over coarse blocks is not shared, nor what came behind it.
  std::vector<int32_t> all = question_.prompt;
  const std::vector<int32_t> answer = recorder->tokens();
  all.insert(all.end(), answer.begin(), answer.end());
  ASSERT_GE(static_cast<int64_t>(all.size()) / 16 * 16, shared() + 32);
  EXPECT_EQ(Cached(all), shared());
  EXPECT_EQ(engine_->CachedTokens(question_.prompt, nullptr, ""), 0);

  // Over those blocks an answer is that over whole frames, to the last bit of its logarithms.
  const auto raw = OpenDecoders("raw", "", *model_).value();
  const SamplingParams sampling = {.max_tokens = 24, .top_logprobs = 0};
  const auto logprobs = [](Recorder& of) {
    std::vector<float> all;
    for (const TokenEvent& event : of.events()) all.push_back(event.logprobs[0].logprob);
    return all;
  };
  const auto cached = std::make_shared<Recorder>();
  ASSERT_TRUE(engine_->Generate({question_.prompt, sampling, kNever, &codec_, 0, shared()}, cached).ok());
  ASSERT_TRUE(cached->WaitDone());
  EXPECT_FALSE(cached->result().fell_back) << cached->result().fallback_reason;
  EXPECT_EQ(cached->result().cached_tokens, shared());
  EXPECT_EQ(cached->tokens(), WithoutEnd(question_.answer));
  // The same blocks of whole frames, and the same rest computed over them.
  Number(/*plane=*/0, &second_);
  const auto whole = std::make_shared<Recorder>();
  id_ = engine_->Generate({question_.prompt, sampling, kNever, raw.get(), handed_over_}, whole).value();
  Give(second_);
  ASSERT_TRUE(whole->WaitDone());
  const auto whole_cached = std::make_shared<Recorder>();
  ASSERT_TRUE(
      engine_->Generate({question_.prompt, sampling, kNever, raw.get(), 0, shared()}, whole_cached).ok());
  ASSERT_TRUE(whole_cached->WaitDone());
  EXPECT_EQ(whole_cached->result().cached_tokens, shared());
  EXPECT_EQ(logprobs(*cached), logprobs(*whole_cached));
  EXPECT_EQ(engine_->stats().kv_blocks_used, 0);
  EXPECT_EQ(engine_->stats().kv_blocks_reserved, 0);
}

TEST_F(EngineUpgradeTest, SecondPartsBeforeTheFirstTokenGiveTheAnswerOfWholeFrames) {
  const auto recorder = Begin();
  Give(first_, 0, first_.size() - 1);
  ASSERT_EQ(recorder->events().size(), 0u);
  // All of them lie there when the last of the first parts comes, and a few frames are applied before each step.
  engine_->ApplyFrame(id_, DecodeFrameHeader(first_.back().header).value(), first_.back().header,
                      first_.back().payload, [this] { ++released_; });
  Give(second_);
  ASSERT_TRUE(recorder->WaitDone());
  ASSERT_TRUE(recorder->upgraded().has_value());
  EXPECT_TRUE(recorder->upgraded()->ok()) << *recorder->upgraded();
  EXPECT_EQ(Cached(question_.prompt), shared());
}

TEST_F(EngineUpgradeTest, AFrameThatFailsACheckEndsTheUpgradeAndNothingElse) {
  const auto recorder = Begin();
  Give(first_);
  ASSERT_TRUE(recorder->WaitTokens(1));
  second_[1].payload[5] ^= 1;
  Give(second_);
  const auto upgraded = recorder->WaitUpgraded();
  ASSERT_TRUE(upgraded.has_value());
  EXPECT_EQ(upgraded->code(), absl::StatusCode::kDataLoss);
  ASSERT_TRUE(recorder->WaitDone());
  EXPECT_TRUE(recorder->status().ok()) << recorder->status();
  EXPECT_FALSE(recorder->result().fell_back);
  EXPECT_EQ(recorder->tokens().size(), kAnswer);
  EXPECT_EQ(released_, first_.size() + second_.size());
  EXPECT_EQ(Cached(question_.prompt), 0);
}

TEST_F(EngineUpgradeTest, AnUpgradeThatIsGivenUpLeavesTheAnswerAsItIs) {
  const auto recorder = Begin();
  Give(first_);
  ASSERT_TRUE(recorder->WaitTokens(1));
  Give(second_, 0, second_.size() / 2);
  engine_->EndUpgrade(id_);
  Give(second_, second_.size() / 2, second_.size());  // they come late
  ASSERT_TRUE(recorder->WaitDone());
  EXPECT_TRUE(recorder->status().ok()) << recorder->status();
  EXPECT_EQ(recorder->tokens().size(), kAnswer);
  EXPECT_FALSE(recorder->upgraded().has_value());
  EXPECT_EQ(released_, first_.size() + second_.size());
  EXPECT_EQ(Cached(question_.prompt), 0);
  EXPECT_EQ(engine_->stats().kv_blocks_used, 0);
}

TEST_F(EngineUpgradeTest, AnAnswerThatEndsBeforeReleasesWhatStillComes) {
  const auto recorder = Begin(/*max_tokens=*/2);
  Give(first_);
  ASSERT_TRUE(recorder->WaitDone());
  Give(second_);
  const auto other = Ask(question_);  // behind them
  ASSERT_TRUE(other->WaitDone());
  EXPECT_EQ(other->tokens(), WithoutEnd(question_.answer));
  EXPECT_EQ(released_, first_.size() + second_.size());
  EXPECT_FALSE(recorder->upgraded().has_value());
  EXPECT_EQ(Cached(question_.prompt), 0);
}

TEST_F(EngineUpgradeTest, ASecondPartBeforeAllFirstOnesIsAsDamage) {
  const auto recorder = Begin(/*max_tokens=*/8);
  Give(first_, 0, 2);
  Give(second_, 0, 1);
  ASSERT_TRUE(recorder->WaitDone());
  EXPECT_TRUE(recorder->result().fell_back);
  EXPECT_THAT(recorder->result().fallback_reason.ToString(),
              HasSubstr("holds planes from 1 on, want them from 0 on"));
  EXPECT_FALSE(recorder->upgraded().has_value());
  EXPECT_GT(engine_->CachedTokens(question_.prompt, nullptr, ""), 0) << "what was computed instead is exact";
}

TEST_F(EngineUpgradeTest, SeveralChoicesAreRefused) {
  const auto refused =
      engine_->Generate({question_.prompt, {.max_tokens = 4, .choices = 2}, kNever, &codec_, handed_over_},
                        std::make_shared<Recorder>(2));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.status().ToString(), HasSubstr("2 choices over a cache of format raw@1+"));
}

}  // namespace
}  // namespace aludel::engine_testing
