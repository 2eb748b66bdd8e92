#include "runtime/engine/engine.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/codec/open_codec.h"
#include "runtime/engine/engine_options.h"
#include "tests/runtime/engine/engine_fixture.h"

namespace aludel::engine_testing {
namespace {

TEST_F(EngineTest, GivesTheSameTokensToWhoWasPreempted) {
  const std::vector<Question> questions = Questions(6);
  const SamplingParams sampling = {.temperature = 0.8, .seed = 11, .max_tokens = 150, .ignore_eos = true};
  std::vector<std::vector<int32_t>> alone;
  for (const Question& question : questions) {
    const auto recorder = Ask(question, sampling);
    ASSERT_TRUE(recorder->WaitDone());
    alone.push_back(recorder->tokens());
  }
  EXPECT_EQ(engine_->stats().preemptions, 0u);
  int64_t promised = 0;
  for (const Question& question : questions) promised += (question.prompt.size() + 32 + 15) / 16;
  for (const bool prefix_cache : {true, false}) {
    Restart({.kv_blocks = promised, .max_num_batched_tokens = 128, .prefix_cache = prefix_cache});
    std::vector<std::shared_ptr<Recorder>> recorders;
    for (const Question& question : questions) recorders.push_back(Ask(question, sampling));
    for (size_t i = 0; i < questions.size(); ++i) {
      ASSERT_TRUE(recorders[i]->WaitDone());
      EXPECT_TRUE(recorders[i]->status().ok());
      EXPECT_EQ(recorders[i]->tokens(), alone[i]) << "question " << i;
    }
    EXPECT_GT(engine_->stats().preemptions, 0u);
    EXPECT_EQ(engine_->stats().kv_blocks_used, 0);
    EXPECT_EQ(engine_->stats().kv_blocks_reserved, 0);
  }
}

TEST_F(EngineTest, ComputesABeginningOnceForAllThatShareIt) {
  const Question question = Questions(1)[0];
  const auto tokens = static_cast<int64_t>(question.prompt.size());
  const auto first = Ask(question);
  ASSERT_TRUE(first->WaitDone());
  EXPECT_EQ(first->result().cached_tokens, 0);
  EXPECT_EQ(engine_->CachedTokens(question.prompt, nullptr, ""), (tokens - 1) / 16 * 16);
  const uint64_t computed = engine_->stats().prompt_tokens;
  const auto second = Ask(question);
  ASSERT_TRUE(second->WaitDone());
  EXPECT_EQ(second->tokens(), WithoutEnd(question.answer));
  EXPECT_EQ(second->result().cached_tokens, (tokens - 1) / 16 * 16);
  EXPECT_EQ(engine_->stats().prompt_tokens - computed, tokens - (tokens - 1) / 16 * 16);
  EXPECT_EQ(engine_->stats().prefix_queries, 2 * tokens);
  EXPECT_EQ(engine_->stats().prefix_hits, (tokens - 1) / 16 * 16);
  EXPECT_GT(engine_->stats().kv_blocks_cached, 0);
  EXPECT_EQ(engine_->stats().kv_blocks_used, 0);
}

TEST_F(EngineTest, SharesABeginningWithinASaltOnly) {
  const Question question = Questions(1)[0];
  const auto cacheable = (static_cast<int64_t>(question.prompt.size()) - 1) / 16 * 16;
  const auto ask = [&](const std::string& salt) {
    const auto recorder = std::make_shared<Recorder>();
    GenerateSpec spec{.prompt = question.prompt, .cache_salt = salt};
    spec.sampling.max_tokens = 24;
    EXPECT_TRUE(engine_->Generate(std::move(spec), recorder).ok());
    EXPECT_TRUE(recorder->WaitDone());
    EXPECT_EQ(recorder->tokens(), WithoutEnd(question.answer));
    return recorder->result().cached_tokens;
  };
  EXPECT_EQ(ask("alice"), 0);
  EXPECT_EQ(engine_->CachedTokens(question.prompt, nullptr, "alice"), cacheable);
  EXPECT_EQ(engine_->CachedTokens(question.prompt, nullptr, "bob"), 0);
  EXPECT_EQ(engine_->CachedTokens(question.prompt, nullptr, ""), 0);
  EXPECT_EQ(ask("bob"), 0);
  EXPECT_EQ(ask(""), 0);
  for (const char* salt : {"alice", "bob", ""}) EXPECT_EQ(ask(salt), cacheable) << salt;
}

TEST_F(EngineTest, ARequestThatKeepsNoPrefixUsesWhatIsThereAndLeavesNothing) {
  const Question question = Questions(1)[0];
  const auto cacheable = (static_cast<int64_t>(question.prompt.size()) - 1) / 16 * 16;
  const auto ask = [&](bool keep_prefix, int choices) {
    const auto recorder = std::make_shared<Recorder>(choices);
    GenerateSpec spec{.prompt = question.prompt, .keep_prefix = keep_prefix};
    spec.sampling.max_tokens = 24;
    spec.sampling.choices = choices;
    EXPECT_TRUE(engine_->Generate(std::move(spec), recorder).ok());
    EXPECT_TRUE(recorder->WaitDone());
    return recorder->result().cached_tokens;
  };
  EXPECT_EQ(ask(false, 1), 0);
  EXPECT_EQ(ask(false, 2), 0);
  EXPECT_EQ(engine_->CachedTokens(question.prompt, nullptr, ""), 0);
  EXPECT_EQ(engine_->stats().kv_blocks_cached, 0);
  EXPECT_EQ(ask(true, 1), 0);
  EXPECT_EQ(ask(false, 1), cacheable);
}

TEST_F(EngineTest, ServesLossyBlocksToTheirFormatAlone) {
  const auto codec = OpenDecoders("int4", "", *model_).value();
  const auto encoder = OpenEncoders("int4", "", *model_).value();
  const auto raw = OpenDecoders("raw", "", *model_).value();
  const Question question = Questions(1)[0];
  const auto handed_over = static_cast<int64_t>(question.prompt.size()) - 1;
  const auto frames = PrefillFrames(*encoder, question, handed_over);
  Restart({.kv_blocks = 256, .max_num_batched_tokens = 128});
  const SamplingParams sampling = {.max_tokens = 24, .top_logprobs = 0};
  const auto lossy = std::make_shared<Recorder>();
  const SequenceId id =
      engine_->Generate({question.prompt, sampling, kNever, codec.get(), handed_over}, lossy).value();
  for (const auto& frame : frames) {
    engine_->ApplyFrame(id, DecodeFrameHeader(frame.header).value(), frame.header, frame.payload, [] {});
  }
  ASSERT_TRUE(lossy->WaitDone());
  EXPECT_FALSE(lossy->result().fell_back);
  EXPECT_EQ(engine_->CachedTokens(question.prompt, &codec->spec(), ""), handed_over / 16 * 16);
  EXPECT_EQ(engine_->CachedTokens(question.prompt, &raw->spec(), ""), 0);
  EXPECT_EQ(engine_->CachedTokens(question.prompt, nullptr, ""), 0);

  const auto exact = Ask(question);
  ASSERT_TRUE(exact->WaitDone());
  EXPECT_EQ(exact->result().cached_tokens, 0);
  EXPECT_EQ(exact->tokens(), WithoutEnd(question.answer));

  const auto again = std::make_shared<Recorder>();
  ASSERT_TRUE(engine_->Generate({question.prompt, sampling, kNever, codec.get(), 0}, again).ok());
  ASSERT_TRUE(again->WaitDone());
  EXPECT_EQ(again->result().cached_tokens, handed_over / 16 * 16);
  EXPECT_EQ(again->tokens(), lossy->tokens());
  // And these are not the exact ones: its logarithms tell.
  const auto exact_again = Ask(question, sampling);
  ASSERT_TRUE(exact_again->WaitDone());
  EXPECT_NE(exact_again->events()[0].logprobs[0].logprob, lossy->events()[0].logprobs[0].logprob);
}

TEST_F(EngineTest, ComputesExactlyWhereTheCacheNoLongerHoldsWhatTheCallerSaw) {
  const auto codec = OpenDecoders("raw", "", *model_).value();
  const Question question = Questions(1)[0];
  GenerateSpec spec{.prompt = question.prompt, .codec = codec.get(), .cached_tokens = 16};
  spec.sampling.max_tokens = 24;
  const auto recorder = std::make_shared<Recorder>();
  ASSERT_TRUE(engine_->Generate(std::move(spec), recorder).ok());
  ASSERT_TRUE(recorder->WaitDone());
  EXPECT_TRUE(recorder->status().ok()) << recorder->status();
  EXPECT_TRUE(recorder->result().fell_back);
  EXPECT_EQ(recorder->result().fallback_reason.message(),
            "16 tokens were in the prefix cache, 0 are left in it");
  EXPECT_EQ(recorder->tokens(), WithoutEnd(question.answer));
  // What it leaves behind is exact, too.
  EXPECT_EQ(engine_->CachedTokens(question.prompt, &codec->spec(), ""), 0);
  EXPECT_GT(engine_->CachedTokens(question.prompt, nullptr, ""), 0);
  EXPECT_EQ(engine_->stats().fallbacks, 1);
  EXPECT_EQ(engine_->stats().kv_blocks_reserved, 0);
}

TEST_F(EngineTest, LetsAPrefillSkipWhatIsComputedAndNeedsNoFrames) {
  const auto codec = OpenEncoders("raw", "", *model_).value();
  const Question question = Questions(1)[0];
  const auto tokens = static_cast<int64_t>(question.prompt.size());
  const auto all = PrefillFrames(*codec, question, tokens);
  const uint64_t computed = engine_->stats().prompt_tokens;
  FrameStore store(codec->spec().kind);
  const auto recorder = std::make_shared<Recorder>();
  ASSERT_TRUE(engine_
                  ->Prefill({question.prompt, tokens, kNever, codec.get(), &store,
                             /*encode_begin=*/100},
                            recorder)
                  .ok());
  ASSERT_TRUE(recorder->WaitDone());
  EXPECT_EQ(engine_->stats().prompt_tokens - computed, tokens - 96);
  EXPECT_EQ(recorder->result().cached_tokens, 96);
  for (const auto& frame : store.frames) {
    EXPECT_GE(DecodeFrameHeader(frame.header).value().coverage.token_begin, 100u);
  }
  EXPECT_EQ(PrefillFrames(*codec, question, tokens).size(), all.size());  // all frames: nothing to skip
}

}  // namespace
}  // namespace aludel::engine_testing
