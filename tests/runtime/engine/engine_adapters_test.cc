#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "runtime/bench/make_adapter.h"
#include "runtime/codec/open_codec.h"
#include "runtime/engine/engine.h"
#include "tests/runtime/engine/engine_fixture.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel::engine_testing {
namespace {

using Adapter = std::shared_ptr<const LoraWeights>;

class EngineAdapters : public EngineTest {
 protected:
  void SetUp() override {
    const LoraWeights::Base base{EngineModel(), model_->hash(), model_->config(), DType::kF32};
    adapters_.push_back(nullptr);
    for (uint64_t i = 1; i <= 3; ++i) {
      const std::string directory = files_.File(absl::StrCat(i));
      EXPECT_TRUE(
          MakeAdapter({.base = EngineModel(), .out = directory, .rank = 4, .seed = i, .strength = 1.0}).ok());
      auto adapter = LoraWeights::Load(device_.get(), directory, base);
      ASSERT_TRUE(adapter.ok()) << adapter.status();
      adapters_.push_back(*std::move(adapter));
    }
  }
  ~EngineAdapters() override { engine_.reset(); }

  std::shared_ptr<Recorder> AskWith(const Question& question, const Adapter& adapter,
                                    SamplingParams sampling = {.max_tokens = 24}) {
    auto recorder = std::make_shared<Recorder>(sampling.choices);
    GenerateSpec spec{.prompt = question.prompt, .sampling = std::move(sampling), .adapter = adapter};
    EXPECT_TRUE(engine_->Generate(std::move(spec), recorder).ok());
    return recorder;
  }
  std::vector<int32_t> Alone(const Question& question, const Adapter& adapter,
                             SamplingParams sampling = {.max_tokens = 24}) {
    const auto recorder = AskWith(question, adapter, std::move(sampling));
    EXPECT_TRUE(recorder->WaitDone());
    EXPECT_TRUE(recorder->status().ok()) << recorder->status();
    return recorder->tokens();
  }

  const TemporaryDirectory files_;
  std::vector<Adapter> adapters_;  // the first is none
};

TEST_F(EngineAdapters, AnswersMixedInOneBatchAreThoseOfEachAlone) {
  const std::vector<Question> questions = Questions(4);
  const SamplingParams sampling = {.max_tokens = 24, .ignore_eos = true};
  std::vector<std::vector<int32_t>> alone;
  for (const Question& question : questions) {
    for (const Adapter& adapter : adapters_) {
      Restart({.kv_blocks = 256, .max_num_batched_tokens = 128, .prefix_cache = false});
      alone.push_back(Alone(question, adapter, sampling));
    }
    // They say different things, or nothing is shown.
    for (size_t i = 1; i < adapters_.size(); ++i)
      EXPECT_NE(alone[alone.size() - i], alone[alone.size() - i - 1]);
  }
  // Few blocks: some are preempted, and start again with their own adapter.
  for (const int64_t blocks : {int64_t{256}, int64_t{40}}) {
    Restart({.kv_blocks = blocks, .max_num_batched_tokens = 128});
    for (int round = 0; round < 2; ++round) {
      std::vector<std::shared_ptr<Recorder>> recorders;
      size_t next = 0;
      for (const Question& question : questions) {
        for (const Adapter& adapter : adapters_) {
          auto recorder = std::make_shared<Recorder>();
          GenerateSpec spec{.prompt = question.prompt, .sampling = sampling, .adapter = adapter};
          // A full server refuses: ask again when one has ended.
          while (!engine_->Generate(spec, recorder).ok()) ASSERT_TRUE(recorders[next++]->WaitDone());
          recorders.push_back(std::move(recorder));
        }
      }
      for (size_t i = 0; i < recorders.size(); ++i) {
        ASSERT_TRUE(recorders[i]->WaitDone());
        EXPECT_TRUE(recorders[i]->status().ok()) << recorders[i]->status();
        EXPECT_EQ(recorders[i]->tokens(), alone[i]) << "answer " << i << " with " << blocks << " blocks";
      }
    }
  }
}

TEST_F(EngineAdapters, NoBlockOfOneAnswersForAnother) {
  const Question question = Questions(1)[0];
  const auto cacheable = (static_cast<int64_t>(question.prompt.size()) - 1) / 16 * 16;
  for (size_t i = 0; i < adapters_.size(); ++i) {
    for (size_t j = 0; j < adapters_.size(); ++j) {
      EXPECT_EQ(engine_->CachedTokens(question.prompt, nullptr, "", adapters_[j].get()),
                j < i ? cacheable : 0);
    }
    const auto first = AskWith(question, adapters_[i]);
    ASSERT_TRUE(first->WaitDone());
    EXPECT_EQ(first->result().cached_tokens, 0) << "adapter " << i;
    const auto second = AskWith(question, adapters_[i]);
    ASSERT_TRUE(second->WaitDone());
    EXPECT_EQ(second->result().cached_tokens, cacheable) << "adapter " << i;
    EXPECT_EQ(second->tokens(), first->tokens());
  }
}

// An adapter that acts from a token on, as an activated LoRA does: over the model's own cache of what is before.
TEST_F(EngineAdapters, OneThatActsFromATokenOnGoesOnFromTheCacheOfTheModel) {
  const Question question = Questions(1)[0];
  const auto tokens = static_cast<int64_t>(question.prompt.size());
  const SamplingParams sampling = {.max_tokens = 24, .ignore_eos = true};
  const auto ask = [&](const Adapter& adapter, int64_t begin) {
    auto recorder = std::make_shared<Recorder>();
    GenerateSpec spec{
        .prompt = question.prompt, .sampling = sampling, .adapter = adapter, .adapter_begin = begin};
    EXPECT_TRUE(engine_->Generate(std::move(spec), recorder).ok());
    EXPECT_TRUE(recorder->WaitDone());
    EXPECT_TRUE(recorder->status().ok()) << recorder->status();
    return recorder;
  };
  // Within a block, at its edge, and before the last token; alone, in steps that hold both sides of it and in others.
  std::vector<std::vector<int32_t>> answers;
  for (const int64_t begin : {tokens / 2 / 16 * 16 + 5, tokens / 2 / 16 * 16, tokens - 1}) {
    Restart({.kv_blocks = 256, .max_num_batched_tokens = 24, .prefix_cache = false});
    const std::vector<int32_t> alone = ask(adapters_[1], begin)->tokens();
    answers.push_back(alone);
    Restart({.kv_blocks = 256, .max_num_batched_tokens = 128});
    ask(nullptr, 0);  // the model's own request
    for (const auto& [adapter, unshared] : {std::pair{adapters_[1], true}, {adapters_[2], false}}) {
      EXPECT_EQ(engine_->CachedTokens(question.prompt, nullptr, "", adapter.get(), begin), begin / 16 * 16);
      const auto first = ask(adapter, begin);
      EXPECT_EQ(first->result().cached_tokens, begin / 16 * 16);
      if (unshared) {
        EXPECT_EQ(first->tokens(), alone) << "from token " << begin;
      } else {
        EXPECT_NE(first->tokens(), alone) << "from token " << begin;
      }
      const auto second = ask(adapter, begin);
      EXPECT_EQ(second->result().cached_tokens, (tokens - 1) / 16 * 16);
      EXPECT_EQ(second->tokens(), first->tokens());
    }
    // None of what they left is the model's, or that of the adapter that acts from elsewhere on.
    EXPECT_EQ(engine_->CachedTokens(question.prompt, nullptr, "", adapters_[1].get()), 0);
    EXPECT_EQ(engine_->CachedTokens(question.prompt, nullptr, "", adapters_[1].get(), begin - 1),
              (begin - 1) / 16 * 16);
    EXPECT_EQ(ask(adapters_[3], begin)->result().cached_tokens, begin / 16 * 16);
  }
  EXPECT_NE(answers[0], answers[2]);
  // And what they left before it is the model's.
  Restart({.kv_blocks = 256, .max_num_batched_tokens = 128});
  ask(adapters_[1], tokens / 2);
  EXPECT_EQ(engine_->CachedTokens(question.prompt, nullptr, ""), tokens / 2 / 16 * 16);
}

TEST_F(EngineAdapters, TheModelsFramesAreOnlyForWhatComesBeforeTheAdapter) {
  const Question question = Questions(1)[0];
  const auto raw = OpenDecoders("raw", "", *model_).value();
  GenerateSpec spec{.prompt = question.prompt,
                    .codec = raw.get(),
                    .handed_over_tokens = 32,
                    .adapter = adapters_[1],
                    .adapter_begin = 31};
  const absl::Status refused = engine_->Generate(std::move(spec), std::make_shared<Recorder>()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
}

TEST_F(EngineAdapters, ChoicesGoOnWithTheAdapterOfTheirRequest) {
  const Question question = Questions(1)[0];
  const auto recorder = AskWith(question, adapters_[1], {.max_tokens = 16, .choices = 3});
  ASSERT_TRUE(recorder->WaitDone());
  const std::vector<int32_t> alone = Alone(question, adapters_[1], {.max_tokens = 16});
  for (int choice = 0; choice < 3; ++choice) EXPECT_EQ(recorder->tokens(choice), alone);
}

TEST_F(EngineAdapters, AnAdapterIsHeldUntilItsRequestEnds) {
  const std::weak_ptr<const LoraWeights> weak = adapters_[1];
  const auto recorder = AskWith(Questions(1)[0], adapters_[1]);
  adapters_[1].reset();
  EXPECT_FALSE(weak.expired());
  ASSERT_TRUE(recorder->WaitDone());
  engine_.reset();
  EXPECT_TRUE(weak.expired());
}

}  // namespace
}  // namespace aludel::engine_testing
