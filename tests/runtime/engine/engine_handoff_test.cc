#include "runtime/engine/engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/pinned_memory.h"
#include "runtime/codec/open_codec.h"
#include "runtime/engine/engine_options.h"
#include "tests/runtime/engine/engine_fixture.h"
#include "tests/testing/recomputed_tokens.h"

namespace aludel::engine_testing {
namespace {

using ::testing::HasSubstr;

TEST_F(EngineTest, ContinuesOnAHandedOverCache) {
  const auto codec = OpenDecoders("raw", "", *model_).value();
  const auto encoder = OpenEncoders("raw", "", *model_).value();
  for (const Question& question : Questions(3)) {
    const auto handed_over = static_cast<int64_t>(question.prompt.size()) - 1;
    auto frames = PrefillFrames(*encoder, question, handed_over);
    auto recorder = std::make_shared<Recorder>();
    const SequenceId id =
        engine_->Generate({question.prompt, {.max_tokens = 24}, kNever, codec.get(), handed_over}, recorder)
            .value();
    std::reverse(frames.begin(), frames.end());  // any order will do
    int released = 0;
    for (const auto& frame : frames) {
      engine_->ApplyFrame(id, DecodeFrameHeader(frame.header).value(), frame.header, frame.payload,
                          [&released] { ++released; });
    }
    ASSERT_TRUE(recorder->WaitDone());
    EXPECT_EQ(recorder->tokens(), WithoutEnd(question.answer));
    EXPECT_FALSE(recorder->result().fell_back);
    EXPECT_EQ(recorder->result().times.prefill, 0.0);
    EXPECT_EQ(released, static_cast<int>(frames.size()));
  }
}

// Frames in pinned memory, where a device reads them when it gets there. Their bytes go bad as soon as they are given back.
class LentFrames {
 public:
  LentFrames(Device* device, const std::vector<FrameStore::Frame>& frames) : frames_(frames) {
    for (FrameStore::Frame& frame : frames_) {
      pinned_.push_back(std::make_unique<PinnedMemory>(device, absl::MakeSpan(frame.payload)));
    }
  }

  void Give(Engine& engine, SequenceId id, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      FrameStore::Frame& frame = frames_[i];
      engine.ApplyFrame(id, DecodeFrameHeader(frame.header).value(), frame.header, frame.payload,
                        [this, payload = absl::MakeSpan(frame.payload)] {
                          std::fill(payload.begin(), payload.end(), uint8_t{0xee});
                          ++released_;
                        });
    }
  }
  int released() const { return released_; }

 private:
  std::vector<FrameStore::Frame> frames_;
  std::vector<std::unique_ptr<PinnedMemory>> pinned_;
  std::atomic<int> released_{0};
};

TEST_F(EngineTest, ContinuesOnFramesWhoseMemoryIsUsedAgain) {
  const auto codec = OpenDecoders("raw", "", *model_).value();
  const auto encoder = OpenEncoders("raw", "", *model_).value();
  const Question question = Questions(1)[0];
  const auto handed_over = static_cast<int64_t>(question.prompt.size()) - 1;
  const auto sent = PrefillFrames(*encoder, question, handed_over);
  LentFrames frames(device_.get(), sent);
  auto recorder = std::make_shared<Recorder>();
  const SequenceId id =
      engine_->Generate({question.prompt, {.max_tokens = 24}, kNever, codec.get(), handed_over}, recorder)
          .value();
  frames.Give(*engine_, id, sent.size());
  ASSERT_TRUE(recorder->WaitDone());
  EXPECT_EQ(recorder->tokens(), WithoutEnd(question.answer));
  EXPECT_FALSE(recorder->result().fell_back);
  EXPECT_EQ(frames.released(), static_cast<int>(sent.size()));
}

// The device may still be at what was given up, in the blocks that others get now.
TEST_F(EngineTest, CancelsAHandoffWhoseFramesAreOnTheirWay) {
  const auto codec = OpenDecoders("raw", "", *model_).value();
  const auto encoder = OpenEncoders("raw", "", *model_).value();
  const Question question = Questions(1)[0];
  const auto handed_over = static_cast<int64_t>(question.prompt.size()) - 1;
  const auto sent = PrefillFrames(*encoder, question, handed_over);
  for (int i = 0; i < 3; ++i) {
    LentFrames frames(device_.get(), sent);
    auto given_up = std::make_shared<Recorder>();
    const SequenceId id =
        engine_->Generate({question.prompt, {.max_tokens = 24}, kNever, codec.get(), handed_over}, given_up)
            .value();
    frames.Give(*engine_, id, sent.size() - 1);
    engine_->Cancel(id, absl::CancelledError("the client is gone"));
    const auto other = Ask(question);
    ASSERT_TRUE(given_up->WaitDone());
    EXPECT_EQ(given_up->status().code(), absl::StatusCode::kCancelled);
    ASSERT_TRUE(other->WaitDone());
    EXPECT_EQ(other->tokens(), WithoutEnd(question.answer));
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (frames.released() + 1 < static_cast<int>(sent.size())) {
      ASSERT_LT(std::chrono::steady_clock::now(), until);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

TEST_F(EngineTest, ComputesRecomputedTokensAroundAHandoff) {
  const RecomputedTokensEncoders encoders(OpenEncoders("raw", "", *model_).value(), 4, 8);
  const RecomputedTokensDecoders decoders(OpenDecoders("raw", "", *model_).value(), 4, 8);
  for (const Question& question : Questions(3)) {
    const int64_t end = static_cast<int64_t>(question.prompt.size()) - 1 - 8;
    const auto frames = PrefillFrames(encoders, question, end);
    for (const auto& frame : frames) {
      EXPECT_GE(DecodeFrameHeader(frame.header).value().coverage.token_begin, 4u);
    }
    auto recorder = std::make_shared<Recorder>();
    const SequenceId id =
        engine_->Generate({question.prompt, {.max_tokens = 24}, kNever, &decoders, end}, recorder).value();
    for (const auto& frame : frames) {
      engine_->ApplyFrame(id, DecodeFrameHeader(frame.header).value(), frame.header, frame.payload, [] {});
    }
    ASSERT_TRUE(recorder->WaitDone());
    EXPECT_EQ(recorder->tokens(), WithoutEnd(question.answer));
    EXPECT_FALSE(recorder->result().fell_back);
    EXPECT_GT(recorder->result().times.recompute, 0.0);
  }
}

TEST_F(EngineTest, SharesWhatCameAroundARecomputedHead) {
  const Question question = Questions(1)[0];
  const auto tokens = static_cast<int64_t>(question.prompt.size());
  const int64_t end = (tokens - 20) / 16 * 16;  // whole blocks travel, and more than one follows
  const RecomputedTokensEncoders encoders(OpenEncoders("raw", "", *model_).value(), 4, tokens - 1 - end);
  const RecomputedTokensDecoders decoders(OpenDecoders("raw", "", *model_).value(), 4, tokens - 1 - end);
  const auto frames = PrefillFrames(encoders, question, end);
  auto recorder = std::make_shared<Recorder>();
  const SequenceId id =
      engine_->Generate({question.prompt, {.max_tokens = 24}, kNever, &decoders, end}, recorder).value();
  EXPECT_EQ(engine_->CachedTokens(question.prompt, &decoders.spec(), ""), 0);
  for (const auto& frame : frames) {
    engine_->ApplyFrame(id, DecodeFrameHeader(frame.header).value(), frame.header, frame.payload, [] {});
  }
  ASSERT_TRUE(recorder->WaitDone());
  EXPECT_EQ(engine_->CachedTokens(question.prompt, &decoders.spec(), ""), (tokens - 1) / 16 * 16);
}

TEST_F(EngineTest, ComputesTheHeadAloneWhereThePromptsEndFillsABatch) {
  const auto rows = model_->options().max_rows;
  const Question base = Questions(1)[0];
  Question question;  // longer than a batch
  while (static_cast<int64_t>(question.prompt.size()) < rows + 8) {
    question.prompt.insert(question.prompt.end(), base.prompt.begin(), base.prompt.end());
  }
  const int64_t tail = rows - 1;
  const RecomputedTokensEncoders encoders(OpenEncoders("raw", "", *model_).value(), 4, tail);
  const RecomputedTokensDecoders decoders(OpenDecoders("raw", "", *model_).value(), 4, tail);
  Restart({.kv_blocks = 256, .max_num_batched_tokens = rows, .prefix_cache = false});
  const SamplingParams sampling = {.max_tokens = 6, .ignore_eos = true};
  const auto alone = Ask(question, sampling);
  ASSERT_TRUE(alone->WaitDone());
  const int64_t end = static_cast<int64_t>(question.prompt.size()) - 1 - tail;
  const auto frames = PrefillFrames(encoders, question, end);
  auto recorder = std::make_shared<Recorder>();
  const SequenceId id =
      engine_->Generate({question.prompt, sampling, kNever, &decoders, end}, recorder).value();
  const uint64_t steps = engine_->stats().steps;
  for (const auto& frame : frames) {
    engine_->ApplyFrame(id, DecodeFrameHeader(frame.header).value(), frame.header, frame.payload, [] {});
  }
  ASSERT_TRUE(recorder->WaitDone());
  EXPECT_TRUE(recorder->status().ok());
  EXPECT_EQ(recorder->tokens(), alone->tokens());
  EXPECT_FALSE(recorder->result().fell_back);
  EXPECT_EQ(engine_->stats().steps - steps, 6u) << "the prompt's end took one step";
}

TEST_F(EngineTest, FallsBackToItsOwnPrefillWhenAFrameIsCorruptOrTheProducerIsLost) {
  const auto codec = OpenDecoders("raw", "", *model_).value();
  const auto encoder = OpenEncoders("raw", "", *model_).value();
  const Question question = Questions(1)[0];
  const auto handed_over = static_cast<int64_t>(question.prompt.size()) - 1;
  auto frames = PrefillFrames(*encoder, question, handed_over);
  const auto start = [&](const std::shared_ptr<Recorder>& recorder) {
    return engine_
        ->Generate({question.prompt, {.max_tokens = 24}, kNever, codec.get(), handed_over}, recorder)
        .value();
  };
  auto corrupt = std::make_shared<Recorder>();
  SequenceId id = start(corrupt);
  frames[0].payload[5] ^= 1;
  engine_->ApplyFrame(id, DecodeFrameHeader(frames[0].header).value(), frames[0].header, frames[0].payload,
                      [] {});
  ASSERT_TRUE(corrupt->WaitDone());
  EXPECT_EQ(corrupt->tokens(), WithoutEnd(question.answer));
  EXPECT_TRUE(corrupt->result().fell_back);
  EXPECT_EQ(corrupt->result().fallback_reason.code(), absl::StatusCode::kDataLoss);

  auto lost = std::make_shared<Recorder>();
  id = start(lost);
  engine_->FallBack(id, absl::UnavailableError("prefill server is gone"));
  ASSERT_TRUE(lost->WaitDone());
  EXPECT_EQ(lost->tokens(), WithoutEnd(question.answer));
  EXPECT_THAT(std::string(lost->result().fallback_reason.message()), HasSubstr("is gone"));
  EXPECT_EQ(engine_->stats().fallbacks, 2u);
}

// A request whose handoff brings nothing by itself, and what becomes of it.
class LateHandoffTest : public EngineTest {
 protected:
  LateHandoffTest() : codec_(OpenDecoders("raw", "", *model_).value()) {}

  SequenceId Begin(const Question& question, const std::shared_ptr<Recorder>& recorder) {
    return engine_
        ->Generate({question.prompt,
                    {.max_tokens = 24},
                    kNever,
                    codec_.get(),
                    static_cast<int64_t>(question.prompt.size()) - 1},
                   recorder)
        .value();
  }
  // Looks until the engine says so.
  bool WaitStats(const std::function<bool(const EngineStats&)>& reached) {
    const auto until = std::chrono::steady_clock::now() + kPatience;
    while (!reached(engine_->stats())) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }
  void ExpectNothingLeft() {
    EXPECT_EQ(engine_->stats().kv_blocks_used, 0);
    EXPECT_EQ(engine_->stats().kv_blocks_reserved, 0);
    EXPECT_EQ(engine_->stats().running, 0);
  }

  const std::unique_ptr<DecoderFactory> codec_;
};

TEST_F(LateHandoffTest, IsOvertakenByLocalPrefillBesideIt) {
  const Question question = Questions(1)[0];
  Restart({.kv_blocks = 256, .max_num_batched_tokens = 16, .max_hedges = 1});
  auto recorder = std::make_shared<Recorder>();
  engine_->Hedge(Begin(question, recorder), absl::DeadlineExceededError("late"));
  ASSERT_TRUE(recorder->WaitDone());
  EXPECT_EQ(recorder->tokens(), WithoutEnd(question.answer));
  const SequenceResult& result = recorder->result();
  EXPECT_TRUE(result.fell_back);
  EXPECT_EQ(result.fallback_reason, absl::DeadlineExceededError("late"));
  const SequenceTimes& times = result.times;
  EXPECT_GT(times.prefill, 0);
  EXPECT_GE(times.await, 0);
  EXPECT_NEAR(times.ttft,
              times.queue + times.prefill + times.await + times.reconstruct + times.recompute + times.sample,
              1e-6);
  EXPECT_EQ(engine_->stats().hedges_started, 1u);
  EXPECT_EQ(engine_->stats().hedges_won, 1u);
  EXPECT_EQ(engine_->stats().prompt_tokens, question.prompt.size());
  EXPECT_EQ(engine_->stats().prefix_queries, question.prompt.size());
  ExpectNothingLeft();
}

TEST_F(LateHandoffTest, WinsWhenItsFramesAreHereFirst) {
  const auto encoder = OpenEncoders("raw", "", *model_).value();
  const Question question = Questions(1)[0];
  const auto frames = PrefillFrames(*encoder, question, static_cast<int64_t>(question.prompt.size()) - 1);
  ASSERT_LT(frames.size(), question.prompt.size());
  // A token for each step: the prompt takes longer than the frames, eight of which are applied between steps.
  Restart({.kv_blocks = 256, .max_num_batched_tokens = 1, .max_hedges = 1});
  auto recorder = std::make_shared<Recorder>();
  const SequenceId id = Begin(question, recorder);
  engine_->Hedge(id, absl::DeadlineExceededError("late"));
  for (const auto& frame : frames) {
    engine_->ApplyFrame(id, DecodeFrameHeader(frame.header).value(), frame.header, frame.payload, [] {});
  }
  ASSERT_TRUE(recorder->WaitDone());
  EXPECT_EQ(recorder->tokens(), WithoutEnd(question.answer));
  EXPECT_FALSE(recorder->result().fell_back);
  EXPECT_EQ(engine_->stats().hedges_started, 1u);
  EXPECT_EQ(engine_->stats().hedges_lost, 1u);
  EXPECT_EQ(engine_->stats().prefix_queries, question.prompt.size());  // once, though both asked
  ExpectNothingLeft();
}

TEST_F(LateHandoffTest, ThatFailsGoesOnFromWhatWasComputedBesideIt) {
  const Question question = Questions(1)[0];
  Restart({.kv_blocks = 256, .max_num_batched_tokens = 1, .max_hedges = 1, .prefix_cache = false});
  auto recorder = std::make_shared<Recorder>();
  const SequenceId id = Begin(question, recorder);
  engine_->Hedge(id, absl::DeadlineExceededError("late"));
  ASSERT_TRUE(WaitStats([](const EngineStats& stats) { return stats.prompt_tokens >= 3; }));
  engine_->FallBack(id, absl::UnavailableError("gone"));
  ASSERT_TRUE(recorder->WaitDone());
  EXPECT_EQ(recorder->tokens(), WithoutEnd(question.answer));
  EXPECT_EQ(engine_->stats().prompt_tokens, question.prompt.size());  // none twice
  EXPECT_EQ(engine_->stats().hedges_won, 1u);
  ExpectNothingLeft();
}

TEST_F(LateHandoffTest, WaitsForAPlaceWhereOthersAreLate) {
  std::vector<Question> questions = Questions(2);
  questions[0].prompt.resize(900, 5);  // its hedge takes 900 steps
  Restart({.kv_blocks = 256, .max_num_batched_tokens = 1, .max_hedges = 1});
  auto first = std::make_shared<Recorder>();
  auto second = std::make_shared<Recorder>();
  engine_->Hedge(Begin(questions[0], first), absl::DeadlineExceededError("late"));
  const SequenceId id = Begin(questions[1], second);
  for (int i = 0; i < 3; ++i) engine_->Hedge(id, absl::DeadlineExceededError("late"));
  ASSERT_TRUE(first->WaitDone());
  EXPECT_EQ(engine_->stats().hedges_refused, 1u);  // requests, however often they ask
  EXPECT_EQ(engine_->stats().hedges_started, 1u);
  engine_->Hedge(id, absl::DeadlineExceededError("late"));
  ASSERT_TRUE(second->WaitDone());
  EXPECT_EQ(second->tokens(), WithoutEnd(questions[1].answer));
  EXPECT_EQ(engine_->stats().hedges_won, 2u);
  ExpectNothingLeft();
}

TEST_F(LateHandoffTest, IsNotHedgedWithBlocksThatArePromisedToOthers) {
  const Question question = Questions(1)[0];
  const auto promised = static_cast<int64_t>(question.prompt.size() + 24 + 15) / 16;
  Restart({.kv_blocks = promised + 1, .max_num_batched_tokens = 128, .max_hedges = 1});
  auto recorder = std::make_shared<Recorder>();
  const SequenceId id = Begin(question, recorder);
  engine_->Hedge(id, absl::DeadlineExceededError("late"));
  engine_->FallBack(id, absl::UnavailableError("gone"));
  ASSERT_TRUE(recorder->WaitDone());
  EXPECT_EQ(recorder->tokens(), WithoutEnd(question.answer));
  EXPECT_EQ(engine_->stats().hedges_refused, 1u);
  EXPECT_EQ(engine_->stats().hedges_started, 0u);
  ExpectNothingLeft();
}

TEST_F(LateHandoffTest, GivesTheBlocksOfItsHedgeToARequestThatComes) {
  std::vector<Question> questions = Questions(2);
  questions[0].prompt.resize(600, 5);
  const auto promised = [](const Question& question) {
    return static_cast<int64_t>(question.prompt.size() + 24 + 15) / 16;
  };
  const int64_t hedge = static_cast<int64_t>(questions[0].prompt.size() + 15) / 16;
  // Room for the late one and its hedge; the other one is promised what the hedge has.
  Restart({.kv_blocks = promised(questions[0]) + hedge,
           .max_num_batched_tokens = 16,
           .max_hedges = 1,
           .prefix_cache = false});
  auto late = std::make_shared<Recorder>();
  engine_->Hedge(Begin(questions[0], late), absl::DeadlineExceededError("late"));
  ASSERT_TRUE(WaitStats([](const EngineStats& stats) { return stats.prompt_tokens >= 16; }));
  const auto other = Ask(questions[1], {.max_tokens = 24});
  ASSERT_TRUE(other->WaitDone());
  EXPECT_EQ(other->tokens(), WithoutEnd(questions[1].answer));
  ASSERT_TRUE(late->WaitDone());
  EXPECT_TRUE(late->status().ok());
  EXPECT_EQ(engine_->stats().hedges_started, 1u);
  EXPECT_EQ(engine_->stats().preemptions, 0u);  // of a request
  ExpectNothingLeft();
}

TEST_F(LateHandoffTest, TakesItsHedgeWithItWhenItIsCanceled) {
  const Question question = Questions(1)[0];
  Restart({.kv_blocks = 256, .max_num_batched_tokens = 1, .max_hedges = 1});
  auto recorder = std::make_shared<Recorder>();
  const SequenceId id = Begin(question, recorder);
  engine_->Hedge(id, absl::DeadlineExceededError("late"));
  ASSERT_TRUE(WaitStats([](const EngineStats& stats) { return stats.prompt_tokens >= 1; }));
  engine_->Cancel(id, absl::CancelledError("client went away"));
  ASSERT_TRUE(recorder->WaitDone());
  EXPECT_EQ(recorder->status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(engine_->stats().hedges_lost, 1u);
  ExpectNothingLeft();
}

}  // namespace
}  // namespace aludel::engine_testing
