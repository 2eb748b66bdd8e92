#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "runtime/codec/open_codec.h"
#include "tests/runtime/engine/engine_fixture.h"

namespace aludel {
namespace {

using engine_testing::EngineTest;
using engine_testing::Recorder;

// Of a token after a prefix: what the engine should say, in doubles.
struct Expected {
  std::vector<double> logprobs;  // [vocab]
  // The best and the worst rank of a token where each log-probability may be off by half of `margin`.
  std::pair<int, int> ranks(int32_t token, double margin) const {
    const auto above = [&](double bound) {
      return static_cast<int>(
          std::count_if(logprobs.begin(), logprobs.end(), [&](double other) { return other > bound; }));
    };
    return {1 + above(logprobs[token] + margin), std::max(1, above(logprobs[token] - margin))};
  }
};

class ScoresTest : public EngineTest {
 protected:
  // One token at a time through the model alone: no engine, no batches, no chunks.
  std::vector<Expected> OneByOne(const std::vector<int32_t>& prompt) {
    const KvLayout layout = model_->MakeKvLayout(64, 16, DType::kBf16);
    auto pool = BlockPool::Create(device_.get(), layout).value();
    BlockTable blocks;
    std::vector<Expected> all;
    for (size_t i = 0; i < prompt.size(); ++i) {
      EXPECT_TRUE(blocks.Grow(*pool, static_cast<int64_t>(i) + 1).ok());
      std::vector<BatchItem> items{{.ids = absl::MakeConstSpan(prompt).subspan(i, 1),
                                    .position = static_cast<int64_t>(i),
                                    .blocks = blocks.ids(),
                                    .wants_logits = true}};
      std::vector<float> logits;
      EXPECT_TRUE(model_->Forward(absl::MakeSpan(items), *pool, &logits).ok());
      double total = 0;
      const double most = *std::max_element(logits.begin(), logits.end());
      for (const float logit : logits) total += std::exp(double{logit} - most);
      Expected expected;
      for (const float logit : logits) expected.logprobs.push_back(logit - most - std::log(total));
      all.push_back(std::move(expected));
    }
    return all;
  }

  std::vector<int32_t> RandomPrompt(size_t tokens) {
    std::uniform_int_distribution<int32_t> ids(3, static_cast<int32_t>(model_->config().vocab) - 1);
    std::vector<int32_t> prompt;
    while (prompt.size() < tokens) prompt.push_back(ids(random_));
    return prompt;
  }

  std::shared_ptr<Recorder> Score(const std::vector<int32_t>& prompt, int top, bool no_answer,
                                  int choices = 1) {
    SamplingParams sampling{.max_tokens = 2, .ignore_eos = true};
    sampling.choices = choices;
    sampling.prompt_logprobs = top;
    sampling.no_answer = no_answer;
    return Ask({prompt, {}}, std::move(sampling));
  }

  // Every token but the first. A GPU's products run in another order where there are more rows, and what they give to the cache
  // is rounded to bf16.
  void ExpectScores(const Recorder& recorder, const std::vector<int32_t>& prompt,
                    const std::vector<Expected>& expected, int top) {
    const double tolerance = device_->name() == "cpu" ? 2e-4 : 2e-2;
    ASSERT_EQ(recorder.scores().size(), prompt.size() - 1);
    for (size_t i = 1; i < prompt.size(); ++i) {
      const PromptScores::Token& score = recorder.scores()[i - 1];
      const Expected& given = expected[i - 1];
      ASSERT_EQ(score.logprobs.size(), static_cast<size_t>(top) + 1);
      ASSERT_EQ(score.logprobs[0].id, prompt[i]);
      for (const TokenLogprob& entry : score.logprobs) {
        // Written so that a NaN fails.
        ASSERT_TRUE(std::abs(entry.logprob - given.logprobs[entry.id]) < tolerance)
            << "token " << i << ": " << entry.logprob << ", want " << given.logprobs[entry.id];
      }
      for (int k = 2; k <= top; ++k) EXPECT_GE(score.logprobs[k - 1].logprob, score.logprobs[k].logprob);
      // Of near ties either may be the first.
      if (top > 0) {
        EXPECT_EQ(given.ranks(score.logprobs[1].id, 2 * tolerance).first, 1) << "token " << i;
      }
      const auto [best, worst] = given.ranks(prompt[i], 2 * tolerance);
      EXPECT_GE(score.rank, best) << "token " << i;
      EXPECT_LE(score.rank, worst) << "token " << i;
    }
  }

  std::mt19937 random_{20};
};

TEST_F(ScoresTest, AreThoseOfOneTokenAtATimeInDoubles) {
  for (const size_t tokens : {2, 17, 64, 65, 200, 300}) {
    const std::vector<int32_t> prompt = RandomPrompt(tokens);
    const std::vector<Expected> expected = OneByOne(prompt);
    for (const bool no_answer : {true, false}) {
      const auto recorder = Score(prompt, /*top=*/3, no_answer);
      ASSERT_TRUE(recorder->WaitDone());
      ASSERT_TRUE(recorder->status().ok()) << recorder->status();
      ExpectScores(*recorder, prompt, expected, 3);
      EXPECT_EQ(recorder->result().cached_tokens, 0);
      if (no_answer) {
        EXPECT_EQ(recorder->result().reason, FinishReason::kLength);
        EXPECT_EQ(recorder->result().completion_tokens, 0);
      } else {
        EXPECT_EQ(recorder->tokens().size(), 2u);
      }
    }
  }
}

TEST_F(ScoresTest, CoverAPromptThatThePrefixCacheHolds) {
  const std::vector<int32_t> prompt = RandomPrompt(150);
  ASSERT_TRUE(Ask({prompt, {}}, {.max_tokens = 1})->WaitDone());
  ASSERT_GT(engine_->CachedTokens(prompt, nullptr, ""), 100);
  const auto recorder = Score(prompt, /*top=*/0, /*no_answer=*/true);
  ASSERT_TRUE(recorder->WaitDone());
  ExpectScores(*recorder, prompt, OneByOne(prompt), 0);
}

TEST_F(ScoresTest, ComeInPiecesOfAStepOverAllRequests) {
  Restart({.kv_blocks = 256, .max_num_batched_tokens = 128});
  std::vector<std::shared_ptr<Recorder>> recorders;
  std::vector<std::vector<int32_t>> prompts;
  for (int i = 0; i < 3; ++i) {
    prompts.push_back(RandomPrompt(120));
    recorders.push_back(Score(prompts.back(), /*top=*/1, /*no_answer=*/true, /*choices=*/1 + i));
  }
  // All before the first reference: the model belongs to the engine's thread until then.
  for (const auto& recorder : recorders) ASSERT_TRUE(recorder->WaitDone());
  for (int i = 0; i < 3; ++i) {
    ExpectScores(*recorders[i], prompts[i], OneByOne(prompts[i]), 1);
    EXPECT_LE(recorders[i]->largest_piece(), static_cast<size_t>(kMostScoredTokens));
  }
}

TEST_F(ScoresTest, AreToldOnceThoughAPreemptionComputesThemAgain) {
  // 40 blocks of 16 tokens hold four answers in their first stretch, and not to their ends.
  Restart({.kv_blocks = 40, .max_num_batched_tokens = 32, .max_num_seqs = 8});
  std::vector<std::shared_ptr<Recorder>> recorders;
  std::vector<std::vector<int32_t>> prompts;
  for (int i = 0; i < 4; ++i) {
    prompts.push_back(RandomPrompt(100));
    SamplingParams sampling{.max_tokens = 120, .ignore_eos = true};
    sampling.prompt_logprobs = 1;
    auto recorder = std::make_shared<Recorder>();
    const auto id =
        engine_->Generate({.prompt = prompts.back(), .sampling = sampling, .priority = -4 * i}, recorder);
    recorders.push_back(id.ok() ? recorder : nullptr);
  }
  int scored = 0;
  for (const auto& recorder : recorders) ASSERT_TRUE(recorder == nullptr || recorder->WaitDone());
  for (int i = 0; i < 4; ++i) {
    if (recorders[i] == nullptr) continue;
    ExpectScores(*recorders[i], prompts[i], OneByOne(prompts[i]), 1);
    ++scored;
  }
  EXPECT_GE(scored, 2);
  EXPECT_GT(engine_->stats().preemptions, 0);
}

TEST_F(ScoresTest, DelayNoDecodeByALongPrompt) {
  const auto reader = Ask({RandomPrompt(20), {}}, {.max_tokens = 400, .ignore_eos = true});
  ASSERT_TRUE(reader->WaitTokens(1));
  const size_t before = reader->events().size();
  const auto scored = Score(RandomPrompt(900), /*top=*/5, /*no_answer=*/true);
  ASSERT_TRUE(scored->WaitDone());
  // 900 tokens take 15 steps, and the decode has a part in each.
  EXPECT_GE(reader->events().size(), before + 14);
}

TEST_F(ScoresTest, AreRefusedOverACodec) {
  const auto raw = OpenDecoders("raw", "", *model_).value();
  SamplingParams sampling{.max_tokens = 1};
  sampling.prompt_logprobs = 0;
  const auto id = engine_->Generate(
      {.prompt = RandomPrompt(40), .sampling = sampling, .codec = raw.get(), .handed_over_tokens = 32},
      std::make_shared<Recorder>());
  EXPECT_EQ(id.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace aludel
