#include "runtime/engine/engine.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/codec/handoff.h"
#include "runtime/codec/open_codec.h"
#include "runtime/engine/engine_options.h"
#include "runtime/evaluate/oracle.h"
#include "runtime/text/constrain/text_constraint.h"
#include "tests/runtime/engine/engine_fixture.h"

namespace aludel::engine_testing {
namespace {

using ::testing::HasSubstr;

TEST_F(EngineTest, AnswersAsTheReferenceDoes) {
  for (const Question& question : Questions(5)) {
    const auto recorder = Ask(question);
    ASSERT_TRUE(recorder->WaitDone());
    EXPECT_TRUE(recorder->status().ok());
    EXPECT_EQ(recorder->tokens(), WithoutEnd(question.answer));
    const bool ends = question.answer.back() == model_->config().eos_ids[0];
    EXPECT_EQ(recorder->result().reason, ends ? FinishReason::kStop : FinishReason::kLength);
    const SequenceTimes& times = recorder->result().times;
    EXPECT_NEAR(
        times.ttft,
        times.queue + times.prefill + times.await + times.reconstruct + times.recompute + times.sample, 1e-6);
  }
  EXPECT_EQ(engine_->stats().kv_blocks_used, 0);
  EXPECT_EQ(engine_->stats().kv_blocks_reserved, 0);
}

TEST_F(EngineTest, AnswersManyAtOnceAsOneByOne) {
  const std::vector<Question> questions = Questions(8);
  std::vector<std::shared_ptr<Recorder>> recorders;
  for (const Question& question : questions) recorders.push_back(Ask(question));
  for (size_t i = 0; i < questions.size(); ++i) {
    ASSERT_TRUE(recorders[i]->WaitDone());
    EXPECT_EQ(recorders[i]->tokens(), WithoutEnd(questions[i].answer)) << "question " << i;
  }
}

// Blocks half as large, shared with who asks again: the tokens of the model itself over such a cache.
TEST_F(EngineTest, AnswersOverACacheOfFp8) {
  Restart({.kv_blocks = 256, .kv_dtype = DType::kFp8, .max_num_batched_tokens = 128});
  const auto pool = BlockPool::Create(device_.get(), model_->MakeKvLayout(64, 16, DType::kFp8)).value();
  const bool exact = device_->name() == "cpu";  // elsewhere sums depend on how many rows there are
  size_t same = 0, all = 0;
  for (const Question& question : Questions(4)) {
    std::vector<int32_t> first;
    for (int i = 0; i < 2; ++i) {
      const auto recorder = Ask(question);
      ASSERT_TRUE(recorder->WaitDone());
      ASSERT_TRUE(recorder->status().ok()) << recorder->status();
      if (i == 0) first = recorder->tokens();
      if (exact) {
        EXPECT_EQ(recorder->tokens(), first);
      }
    }
    BlockTable table;
    const auto tokens = static_cast<int64_t>(question.prompt.size());
    ASSERT_TRUE(table.Grow(*pool, tokens + 24).ok());
    ASSERT_TRUE(
        RunTokens(*model_, *pool, table.ids(), question.prompt, 0, tokens - 1, nullptr, nullptr).ok());
    const auto alone = AnswerGreedily(*model_, *pool, table.ids(), question.prompt, 24);
    ASSERT_TRUE(alone.ok()) << alone.status();
    if (exact) {
      EXPECT_EQ(first, WithoutEnd(alone->tokens));
    }
    same += first == WithoutEnd(question.answer) ? 1 : 0;
    ++all;
  }
  EXPECT_GE(2 * same, all);  // of a bf16 cache
}

TEST_F(EngineTest, EndsAWaitingSequenceAtItsDeadlineAndFreesItsBlocks) {
  const auto codec = OpenDecoders("raw", "", *model_).value();
  const Question question = Questions(1)[0];
  auto recorder = std::make_shared<Recorder>();
  ASSERT_TRUE(engine_
                  ->Generate({question.prompt,
                              {},
                              SteadyClock::now() + std::chrono::milliseconds(100),
                              codec.get(),
                              static_cast<int64_t>(question.prompt.size()) - 1},
                             recorder)
                  .ok());
  ASSERT_TRUE(recorder->WaitDone());
  EXPECT_EQ(recorder->status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(engine_->stats().kv_blocks_reserved, 0);
  EXPECT_EQ(engine_->stats().kv_blocks_used, 0);
}

TEST_F(EngineTest, CancelsWhileDecoding) {
  const auto recorder = Ask(Questions(1)[0], {.max_tokens = 500, .ignore_eos = true});
  ASSERT_TRUE(recorder->WaitTokens(3));
  engine_->Cancel(last_id_, absl::CancelledError("client went away"));
  ASSERT_TRUE(recorder->WaitDone());
  EXPECT_EQ(recorder->status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(engine_->stats().kv_blocks_reserved, 0);
}

TEST_F(EngineTest, StopsAtAStopStringAndNeverShowsIt) {
  Question question = Questions(1)[0];
  const auto whole = Ask(question);
  ASSERT_TRUE(whole->WaitDone());
  const std::string text = whole->text();
  ASSERT_GT(text.size(), 3u);
  const auto stopped = Ask(question, {.max_tokens = 24, .stop = {text.substr(2, 2)}});
  ASSERT_TRUE(stopped->WaitDone());
  EXPECT_EQ(stopped->text(), text.substr(0, text.find(text.substr(2, 2))));
  EXPECT_EQ(stopped->result().reason, FinishReason::kStop);
}

TEST_F(EngineTest, EndsAtMaxTokensWithReasonLength) {
  const auto recorder = Ask(Questions(1)[0], {.max_tokens = 3, .ignore_eos = true});
  ASSERT_TRUE(recorder->WaitDone());
  EXPECT_EQ(recorder->tokens().size(), 3u);
  EXPECT_EQ(recorder->result().reason, FinishReason::kLength);
}

TEST_F(EngineTest, GivesEveryChoiceItsOwnAnswerOverOnePrompt) {
  const Question question = Questions(1)[0];
  SamplingParams sampling = {.temperature = 1.5, .seed = 7, .max_tokens = 12, .ignore_eos = true};
  // One at a time, with nothing shared.
  std::vector<std::vector<int32_t>> alone;
  for (int choice = 0; choice < 3; ++choice) {
    SamplingParams several = sampling;
    several.choices = choice + 1;
    const auto recorder = Ask(question, several);
    ASSERT_TRUE(recorder->WaitDone());
    EXPECT_EQ(recorder->tokens(0).size(), 12u);
    alone.push_back(recorder->tokens(choice));
    EXPECT_EQ(recorder->tokens(0), alone[0]);
  }
  EXPECT_NE(alone[0], alone[1]);
  EXPECT_NE(alone[1], alone[2]);
  Restart({.kv_blocks = 256, .max_num_batched_tokens = 128, .prefix_cache = false});
  sampling.choices = 3;
  const auto together = Ask(question, sampling);
  const auto beside = Ask(Questions(2)[1], {.temperature = 1.0, .max_tokens = 12});
  ASSERT_TRUE(together->WaitDone());
  ASSERT_TRUE(beside->WaitDone());
  for (int choice = 0; choice < 3; ++choice) EXPECT_EQ(together->tokens(choice), alone[choice]);
  EXPECT_EQ(engine_->stats().prompt_tokens, question.prompt.size() + Questions(2)[1].prompt.size());
  EXPECT_EQ(engine_->stats().kv_blocks_used, 0);
  EXPECT_EQ(engine_->stats().kv_blocks_reserved, 0);
}

TEST_F(EngineTest, PromisesThePromptsBlocksOnceForAllChoices) {
  const Question question = Questions(1)[0];
  const auto prompt = static_cast<int64_t>(question.prompt.size());
  const int64_t shared = prompt / 16;
  const int64_t each = (prompt + 20 + 15) / 16 - shared;
  Restart({.kv_blocks = shared + 4 * each, .max_num_batched_tokens = 128});
  const SamplingParams sampling = {.temperature = 1.0, .max_tokens = 20, .ignore_eos = true, .choices = 4};
  const auto recorder = Ask(question, sampling);
  ASSERT_TRUE(recorder->WaitDone());
  for (int choice = 0; choice < 4; ++choice) EXPECT_EQ(recorder->tokens(choice).size(), 20u);
  SamplingParams more = sampling;
  for (const int choices : {5, 65}) {  // more blocks than there are, more sequences than may run
    more.choices = choices;
    EXPECT_EQ(engine_->Generate({question.prompt, more}, std::make_shared<Recorder>()).status().code(),
              absl::StatusCode::kFailedPrecondition);
  }
}

TEST_F(EngineTest, CancelsAllChoicesBeforeAndAfterTheyParted) {
  const auto codec = OpenDecoders("raw", "", *model_).value();
  const Question question = Questions(1)[0];
  const SamplingParams sampling = {.temperature = 1.0, .max_tokens = 500, .ignore_eos = true, .choices = 3};
  const auto waiting = std::make_shared<Recorder>(3);
  const SequenceId id =
      engine_->Generate({question.prompt, sampling, kNever, codec.get(), 10}, waiting).value();
  engine_->Cancel(id, absl::CancelledError("client went away"));
  ASSERT_TRUE(waiting->WaitDone());
  const auto running = Ask(question, sampling);
  ASSERT_TRUE(running->WaitTokens(9));
  engine_->Cancel(last_id_, absl::CancelledError("client went away"));
  ASSERT_TRUE(running->WaitDone());
  EXPECT_EQ(running->status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(engine_->stats().kv_blocks_used, 0);
  EXPECT_EQ(engine_->stats().kv_blocks_reserved, 0);
}

TEST_F(EngineTest, SendsLogprobsWhereTheyAreAskedFor) {
  const auto recorder = Ask(Questions(1)[0], {.max_tokens = 5, .ignore_eos = true, .top_logprobs = 3});
  ASSERT_TRUE(recorder->WaitDone());
  for (const TokenEvent& event : recorder->events()) {
    ASSERT_EQ(event.logprobs.size(), 4u);
    // Greedy: the token is the likeliest.
    EXPECT_EQ(event.logprobs[0].id, event.id);
    EXPECT_EQ(event.logprobs[1].id, event.id);
    EXPECT_LE(event.logprobs[0].logprob, 0.0f);
    EXPECT_GE(event.logprobs[1].logprob, event.logprobs[2].logprob);
  }
  EXPECT_FALSE(engine_->Generate({{5}, {.logit_bias = {{99999, 1.0f}}}}, std::make_shared<Recorder>()).ok());
}

// Log-probabilities, a bias and a mask need the logits here; other tokens are drawn where the logits are.
// Either way, and in any company, a request gets the same ones.
TEST_F(EngineTest, ChoosesTheSameTokensOnTheDeviceAndHere) {
  const std::vector<Question> questions = Questions(4);
  const std::vector<SamplingParams> ways = {
      {.max_tokens = 20, .ignore_eos = true},
      {.temperature = 1.0, .seed = 5, .max_tokens = 20, .ignore_eos = true},
      {.temperature = 1.3, .top_k = 40, .top_p = 0.9, .seed = 6, .max_tokens = 20, .ignore_eos = true},
      {.temperature = 2.0, .min_p = 0.02, .seed = 7, .max_tokens = 20, .ignore_eos = true}};
  const auto here = [](SamplingParams sampling) {
    sampling.top_logprobs = 0;
    return sampling;
  };
  std::vector<std::vector<int32_t>> alone;
  for (size_t i = 0; i < ways.size(); ++i) {
    const auto on_device = Ask(questions[i], ways[i]);
    ASSERT_TRUE(on_device->WaitDone());
    const auto on_host = Ask(questions[i], here(ways[i]));
    ASSERT_TRUE(on_host->WaitDone());
    EXPECT_EQ(on_device->tokens().size(), 20u);
    EXPECT_EQ(on_device->tokens(), on_host->tokens()) << i;
    alone.push_back(on_device->tokens());
  }
  SamplingParams biased = ways[2];
  biased.logit_bias = {{9, 3.0f}};
  const auto biased_alone = Ask(questions[0], biased);
  ASSERT_TRUE(biased_alone->WaitDone());
  std::vector<std::shared_ptr<Recorder>> together;
  for (size_t i = 0; i < ways.size(); ++i) {
    together.push_back(Ask(questions[i], ways[i]));
    together.push_back(Ask(questions[i], here(ways[i])));
  }
  const auto biased_beside = Ask(questions[0], biased);
  for (size_t i = 0; i < together.size(); ++i) {
    ASSERT_TRUE(together[i]->WaitDone());
    EXPECT_EQ(together[i]->tokens(), alone[i / 2]) << i;
  }
  ASSERT_TRUE(biased_beside->WaitDone());
  EXPECT_EQ(biased_beside->tokens(), biased_alone->tokens());
}

// A model whose final norm is NaN throughout: the file's last tensor.
TEST_F(EngineTest, EndsARequestWhoseLogitsAreNoNumbers) {
  const std::filesystem::path directory = std::filesystem::path(::testing::TempDir()) / "not_a_number";
  std::filesystem::remove_all(directory);
  std::filesystem::copy(EngineModel(), directory);
  {
    std::fstream file(directory / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-512, std::ios::end);
    file.write(std::string(512, '\xff').data(), 512);
    ASSERT_TRUE(file.good());
  }
  const auto broken = Transformer::Load(device_.get(), directory.string(), {.compute = DType::kF32}).value();
  engine_ =
      Engine::Start(broken.get(), tokenizer_.get(), {.kv_blocks = 64, .max_num_batched_tokens = 128}).value();
  const auto automaton = std::make_shared<TokenAutomaton>(
      CompileConstraint({"<", R"({"type": "integer"})", ">"}).value(),
      std::make_shared<const TokenTable>(*tokenizer_, model_->config().eos_ids, tokenizer_->vocab_size()));
  for (const double temperature : {0.0, 1.0}) {
    std::vector<GenerateSpec> specs(4, GenerateSpec{.prompt = Questions(1)[0].prompt});
    for (GenerateSpec& spec : specs) spec.sampling.temperature = temperature;
    specs[1].sampling.top_logprobs = 2;
    specs[2].sampling.repetition_penalty = 1.2;
    specs[3].constraint = automaton;
    for (const GenerateSpec& spec : specs) {
      const auto recorder = std::make_shared<Recorder>();
      ASSERT_TRUE(engine_->Generate(spec, recorder).ok());
      ASSERT_TRUE(recorder->WaitDone());
      EXPECT_EQ(recorder->status().code(), absl::StatusCode::kInternal);
      EXPECT_THAT(std::string(recorder->status().message()), HasSubstr("not finite"));
      EXPECT_TRUE(recorder->events().empty());
    }
  }
  EXPECT_EQ(engine_->stats().kv_blocks_used, 0);
  engine_.reset();
  std::filesystem::remove_all(directory);
}

TEST_F(EngineTest, GeneratesOnlyWhatTheConstraintAllows) {
  const char* schema =
      R"({"type": "object", "properties": {"answer": {"type": "string", "maxLength": 20}, "n": {"type": "integer",
          "maximum": 99, "minimum": 0}}, "required": ["answer", "n"], "additionalProperties": false})";
  const auto table =
      std::make_shared<const TokenTable>(*tokenizer_, model_->config().eos_ids, tokenizer_->vocab_size());
  const auto automaton =
      std::make_shared<TokenAutomaton>(CompileConstraint({"<", schema, ">"}).value(), table);
  for (const double temperature : {0.0, 1.5}) {
    GenerateSpec spec{.prompt = Questions(1)[0].prompt};
    spec.sampling = {.temperature = temperature, .seed = 3, .ignore_eos = true, .choices = 3};
    spec.constraint = automaton;
    const auto recorder = std::make_shared<Recorder>(3);
    ASSERT_TRUE(engine_->Generate(spec, recorder).ok());
    ASSERT_TRUE(recorder->WaitDone());
    EXPECT_TRUE(recorder->status().ok());
    for (int choice = 0; choice < 3; ++choice) {
      const std::string text = tokenizer_->Decode(recorder->tokens(choice), true);
      ASSERT_GT(text.size(), 2u);
      EXPECT_EQ(text.front(), '<');
      EXPECT_EQ(text.back(), '>');
      const auto value = nlohmann::json::parse(text.substr(1, text.size() - 2), nullptr, false);
      ASSERT_TRUE(value.is_object()) << text;
      EXPECT_TRUE(value["answer"].is_string()) << text;
      EXPECT_LE(value["n"].get<int>(), 99) << text;
      EXPECT_EQ(value.size(), 2u) << text;
    }
  }
  EXPECT_EQ(engine_->stats().kv_blocks_reserved, 0);
}

TEST_F(EngineTest, RefusesAtOnceWhatItCannotHold) {
  const Question question = Questions(1)[0];
  const auto first_stretch = static_cast<int64_t>(question.prompt.size() + 32 + 15) / 16;
  Restart({.kv_blocks = 2 * first_stretch + 1, .max_num_batched_tokens = 128});
  const auto first = Ask(question, {.max_tokens = 40, .ignore_eos = true});
  const auto beside = Ask(question, {.max_tokens = 40, .ignore_eos = true});
  const auto third = engine_->Generate({question.prompt, {.max_tokens = 40}}, std::make_shared<Recorder>());
  EXPECT_EQ(third.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(third.status().message()), HasSubstr("KV blocks, 1 of "));

  Question tall = question;
  tall.prompt.resize(1500, 5);
  const auto too_long = engine_->Generate({tall.prompt, {}}, std::make_shared<Recorder>());
  EXPECT_THAT(std::string(too_long.status().message()),
              HasSubstr("1500 tokens, this model's maximum context length is 1024"));
  EXPECT_FALSE(engine_->Generate({{}, {}}, std::make_shared<Recorder>()).ok());
  EXPECT_FALSE(engine_->Generate({{1, 99999}, {}}, std::make_shared<Recorder>()).ok());
  ASSERT_TRUE(first->WaitDone());
  ASSERT_TRUE(beside->WaitDone());
}

TEST_F(EngineTest, LetsPriorityPassTheQueue) {
  Question question = Questions(1)[0];
  question.prompt.resize(900, 5);  // the first one takes longer than it takes to ask for the others
  Restart({.kv_blocks = 256, .max_num_batched_tokens = 16, .prefix_cache = false});
  const auto first = Ask(question, {.max_tokens = 2, .ignore_eos = true});
  const auto second = Ask(question, {.max_tokens = 2, .ignore_eos = true});
  GenerateSpec urgent{.prompt = question.prompt, .priority = -1};
  urgent.sampling = {.max_tokens = 2, .ignore_eos = true};
  const auto third = std::make_shared<Recorder>();
  ASSERT_TRUE(engine_->Generate(urgent, third).ok());
  for (const auto& recorder : {first, second, third}) ASSERT_TRUE(recorder->WaitDone());
  EXPECT_LT(third->ended_at(), second->began());
  urgent.priority = 17;
  EXPECT_EQ(engine_->Generate(urgent, std::make_shared<Recorder>()).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(EngineTest, EndsEverySequenceWhenItIsDestroyed) {
  const auto recorder = Ask(Questions(1)[0], {.max_tokens = 700, .ignore_eos = true});
  ASSERT_TRUE(recorder->WaitTokens(1));
  engine_.reset();
  ASSERT_TRUE(recorder->WaitDone());
  EXPECT_EQ(recorder->status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace aludel::engine_testing
