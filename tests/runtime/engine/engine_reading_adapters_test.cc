#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/open_device.h"
#include "runtime/bench/make_adapter.h"
#include "runtime/engine/engine.h"
#include "runtime/kv/block_pool.h"
#include "runtime/kv/prefix_watcher.h"
#include "tests/runtime/engine/engine_fixture.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel::engine_testing {
namespace {

using Adapter = std::shared_ptr<const LoraWeights>;

constexpr int64_t kBlock = 16;

// Where the blocks end that it was told of.
class Ends : public PrefixWatcher {
 public:
  void OnStored(const Block& block) override { ends.push_back(static_cast<int64_t>(block.tokens.size())); }
  void OnRemoved(const PrefixHash&) override {}
  std::vector<int64_t> ends;
};

// Adapters that choose tokens over the cache of the model alone (ICaRus).
class EngineReadingAdapters : public EngineTest {
 protected:
  // `max_rows`: of a pass.
  void Open(int64_t max_rows) {
    engine_.reset();
    model_ = Transformer::Load(device_.get(), EngineModel(), {.compute = DType::kF32, .max_rows = max_rows})
                 .value();
    readers_.clear();
    for (uint64_t i = 1; i <= 2; ++i) readers_.push_back(Load({.seed = i, .reads_only = true}));
    whole_ = Load({.seed = 3});
  }
  ~EngineReadingAdapters() override { engine_.reset(); }

  Adapter Load(MakeAdapterOptions options) {
    options.base = EngineModel();
    options.out = files_.File(absl::StrCat(made_++));
    options.rank = 4;
    options.strength = 1.0;
    EXPECT_TRUE(MakeAdapter(options).ok());
    return LoraWeights::Load(device_.get(), options.out,
                             {options.base, model_->hash(), model_->config(), DType::kF32})
        .value();
  }

  GenerateSpec Spec(const std::vector<int32_t>& prompt, const Adapter& adapter) const {
    return {.prompt = prompt,
            .sampling = kSampling,
            .adapter = adapter,
            .adapter_reads_only = adapter != nullptr && adapter != whole_};
  }
  std::shared_ptr<Recorder> Ask(GenerateSpec spec) {
    auto recorder = std::make_shared<Recorder>(spec.sampling.choices);
    EXPECT_TRUE(engine_->Generate(std::move(spec), recorder).ok());
    EXPECT_TRUE(recorder->WaitDone());
    EXPECT_TRUE(recorder->status().ok()) << recorder->status();
    return recorder;
  }

  // What `adapter` chooses, one pass for the cache of each token and another for the choice. No engine may run.
  std::vector<int32_t> Computed(const std::vector<int32_t>& prompt, const Adapter& adapter) {
    const auto pool =
        BlockPool::Create(device_.get(), model_->MakeKvLayout(64, kBlock, DType::kBf16)).value();
    BlockTable table;
    std::vector<int32_t> tokens = prompt;
    std::vector<float> logits;
    const auto end = static_cast<size_t>(kSampling.max_tokens) + prompt.size();
    for (size_t done = 0; tokens.size() < end;) {
      EXPECT_TRUE(table.Grow(*pool, static_cast<int64_t>(tokens.size())).ok());
      for (; done < tokens.size(); ++done) {
        BatchItem base{.ids = absl::MakeConstSpan(tokens).subspan(done, 1),
                       .position = static_cast<int64_t>(done),
                       .blocks = table.ids()};
        EXPECT_TRUE(model_->Forward(absl::MakeSpan(&base, 1), *pool, &logits).ok());
      }
      BatchItem reader{.ids = absl::MakeConstSpan(tokens).subspan(done - 1),
                       .position = static_cast<int64_t>(done) - 1,
                       .blocks = table.ids(),
                       .wants_logits = true,
                       .adapter = adapter.get(),
                       .reads_only = true};
      EXPECT_TRUE(model_->Forward(absl::MakeSpan(&reader, 1), *pool, &logits).ok());
      tokens.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    }
    return {tokens.begin() + static_cast<int64_t>(prompt.size()), tokens.end()};
  }

  const SamplingParams kSampling = {.max_tokens = 24, .ignore_eos = true};
  const TemporaryDirectory files_;
  int made_ = 0;
  std::vector<Adapter> readers_;
  Adapter whole_;  // one that makes a cache
};

TEST_F(EngineReadingAdapters, ShareTheModelsCacheOfPromptAndAnswer) {
  Open(128);
  const std::vector<int32_t> prompt = Questions(1)[0].prompt;
  const auto tokens = static_cast<int64_t>(prompt.size());
  const std::vector<int32_t> computed = Computed(prompt, readers_[0]);
  EXPECT_NE(Computed(prompt, readers_[1]), computed);
  std::vector<int32_t> longer = prompt;
  longer.insert(longer.end(), computed.begin(), computed.end());
  Restart({.kv_blocks = 256, .max_num_batched_tokens = 24, .prefix_cache = false});
  EXPECT_EQ(Ask(Spec(prompt, readers_[0]))->tokens(), computed);
  const std::vector<int32_t> models = Ask(Spec(longer, nullptr))->tokens();
  const std::vector<int32_t> others = Ask(Spec(longer, readers_[1]))->tokens();
  EXPECT_NE(models, others);

  Restart({.kv_blocks = 256, .max_num_batched_tokens = 128});
  Ask(Spec(prompt, nullptr));  // the model's own request
  const auto first = Ask(Spec(prompt, readers_[0]));
  EXPECT_EQ(first->result().cached_tokens, (tokens - 1) / kBlock * kBlock);
  EXPECT_EQ(first->tokens(), computed);
  // The model and another adapter go on from what it left, of its answer, too.
  const int64_t left = (static_cast<int64_t>(longer.size()) - 1) / kBlock * kBlock;
  ASSERT_GT(left, tokens);
  for (const auto& [adapter, answer] : {std::pair{Adapter(), models}, {readers_[1], others}}) {
    const auto next = Ask(Spec(longer, adapter));
    EXPECT_EQ(next->result().cached_tokens, left);
    EXPECT_EQ(next->tokens(), answer);
  }
  // An adapter that makes a cache has none of it.
  EXPECT_EQ(Ask(Spec(prompt, whole_))->result().cached_tokens, 0);
}

TEST_F(EngineReadingAdapters, TellOfTheBlocksThatTheyStore) {
  Open(128);
  const std::vector<int32_t> prompt = Questions(1)[0].prompt;
  const int64_t full = (static_cast<int64_t>(prompt.size()) + kSampling.max_tokens - 1) / kBlock;
  ASSERT_GT(full, 2);
  const auto told = [&](const Adapter& adapter) {
    Ends watcher;
    Restart({.kv_blocks = 256, .max_num_batched_tokens = 128});
    engine_->WatchPrefixes(&watcher);
    Ask(Spec(prompt, adapter));
    engine_.reset();
    return watcher.ends;
  };
  std::vector<int64_t> expected;
  for (int64_t block = 1; block <= full; ++block) expected.push_back(block * kBlock);
  EXPECT_EQ(told(nullptr), expected);
  EXPECT_EQ(told(readers_[0]), expected);
  EXPECT_TRUE(told(whole_).empty());
}

// Steps that are full without them, few blocks, and answers that take their logits and not a draw of the device.
TEST_F(EngineReadingAdapters, AnswersMixedInOneBatchAreThoseOfEachAlone) {
  Open(32);
  std::vector<GenerateSpec> specs;
  for (const Question& question : Questions(3)) {
    for (const Adapter& adapter : {Adapter(), readers_[0], whole_, readers_[1]}) {
      specs.push_back(Spec(question.prompt, adapter));
      if (specs.size() % 3 == 0) specs.back().sampling.top_logprobs = 1;
    }
  }
  Restart({.kv_blocks = 256, .max_num_batched_tokens = 32, .prefix_cache = false});
  std::vector<std::vector<int32_t>> alone;
  for (const GenerateSpec& spec : specs) alone.push_back(Ask(spec)->tokens());
  for (const int64_t blocks : {int64_t{256}, int64_t{40}}) {
    Restart({.kv_blocks = blocks, .max_num_batched_tokens = 32});
    std::vector<std::shared_ptr<Recorder>> recorders;
    size_t next = 0;
    for (const GenerateSpec& spec : specs) {
      auto recorder = std::make_shared<Recorder>();
      // A full server refuses: ask again when one has ended.
      while (!engine_->Generate(spec, recorder).ok()) ASSERT_TRUE(recorders[next++]->WaitDone());
      recorders.push_back(std::move(recorder));
    }
    for (size_t i = 0; i < recorders.size(); ++i) {
      ASSERT_TRUE(recorders[i]->WaitDone());
      EXPECT_TRUE(recorders[i]->status().ok()) << recorders[i]->status();
      EXPECT_EQ(recorders[i]->tokens(), alone[i]) << "answer " << i << " with " << blocks << " blocks";
    }
  }
}

TEST_F(EngineReadingAdapters, ScoreAPromptByWhatTheyChooseAndNotByTheModel) {
  Open(32);
  Restart({.kv_blocks = 256, .max_num_batched_tokens = 32});
  const std::vector<int32_t> prompt = Questions(1)[0].prompt;
  const std::vector<int32_t> answer = Ask(Spec(prompt, readers_[0]))->tokens();
  std::vector<int32_t> longer = prompt;
  longer.insert(longer.end(), answer.begin(), answer.end());
  GenerateSpec spec = Spec(longer, readers_[0]);
  spec.sampling.prompt_logprobs = 0;
  const auto scored = Ask(spec);
  ASSERT_EQ(scored->scores().size(), longer.size() - 1);
  for (size_t i = prompt.size(); i < longer.size(); ++i) EXPECT_EQ(scored->scores()[i - 1].rank, 1) << i;
  spec.adapter = nullptr;
  const auto models = Ask(spec);
  EXPECT_TRUE(std::any_of(models->scores().begin() + static_cast<int64_t>(prompt.size()) - 1,
                          models->scores().end(), [](const auto& token) { return token.rank > 1; }));
}

TEST_F(EngineReadingAdapters, ChoicesAreEachWhatOneIs) {
  Open(128);
  Restart({.kv_blocks = 256, .max_num_batched_tokens = 128});
  const std::vector<int32_t> prompt = Questions(1)[0].prompt;
  const std::vector<int32_t> alone = Ask(Spec(prompt, readers_[0]))->tokens();
  GenerateSpec spec = Spec(prompt, readers_[0]);
  spec.sampling.choices = 3;
  const auto recorder = Ask(std::move(spec));
  for (int choice = 0; choice < 3; ++choice) EXPECT_EQ(recorder->tokens(choice), alone);
}

// Of any device: this one's engine, and the CPU's passes one by one.
TEST_F(EngineReadingAdapters, AnswersAreWhatTheCpuComputes) {
  Open(128);
  std::vector<int32_t> prompt = Questions(1)[0].prompt;
  prompt.resize(40);
  Restart({.kv_blocks = 64, .max_num_batched_tokens = 128});
  std::vector<std::vector<int32_t>> answers;
  for (const Adapter& adapter : {Adapter(), readers_[0], readers_[1]}) {
    GenerateSpec spec = Spec(prompt, adapter);
    spec.sampling.max_tokens = 8;
    answers.push_back(Ask(std::move(spec))->tokens());
  }
  EXPECT_NE(answers[1], answers[0]);
  EXPECT_NE(answers[1], answers[2]);
  engine_.reset();
  readers_.clear();
  whole_ = nullptr;
  model_ = nullptr;
  device_ = OpenDevice({.name = "cpu", .threads = 1}).value();
  Open(128);
  for (size_t i = 0; i < readers_.size(); ++i) {
    std::vector<int32_t> computed = Computed(prompt, readers_[i]);
    computed.resize(8);
    EXPECT_EQ(answers[i + 1], computed);
  }
}

TEST_F(EngineReadingAdapters, OneThatUpdatesTheCacheIsRefused) {
  Open(128);
  Restart({.kv_blocks = 256, .max_num_batched_tokens = 128});
  GenerateSpec spec = Spec(Questions(1)[0].prompt, whole_);
  spec.adapter_reads_only = true;
  const absl::Status refused = engine_->Generate(std::move(spec), std::make_shared<Recorder>()).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << refused;
}

}  // namespace
}  // namespace aludel::engine_testing
