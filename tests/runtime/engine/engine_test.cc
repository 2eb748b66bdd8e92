#include "runtime/engine/engine.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "runtime/codec/open_codec.h"
#include "runtime/engine/engine_options.h"
#include "runtime/evaluate/in_process_handoff.h"
#include "runtime/text/constrain/json_schema.h"
#include "tests/testing/recomputed_tokens_codec.h"
#include "tests/testing/test_device.h"

namespace aludel {
namespace {

// For what takes milliseconds, and under ThreadSanitizer on a busy machine half a minute.
constexpr std::chrono::minutes kPatience(2);
constexpr SteadyClock::time_point kNever = SteadyClock::time_point::max();

using ::testing::HasSubstr;

// Keeps what a sequence said, and when, and waits for its end.
class Recorder : public SequenceListener {
 public:
  explicit Recorder(int choices = 1) : open_(choices) {}
  void OnToken(const TokenEvent& event) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (events_.empty()) began_ = std::chrono::steady_clock::now();
    events_.push_back(event);
    changed_.notify_all();
  }
  void OnDone(const absl::Status& status, const SequenceResult& result) override {
    std::lock_guard<std::mutex> lock(mutex_);
    EXPECT_GT(open_, 0) << "OnDone came too often";
    EXPECT_TRUE(ended_.insert(result.choice).second);
    --open_;
    status_ = status;
    result_ = result;
    ended_at_ = std::chrono::steady_clock::now();
    changed_.notify_all();
  }
  // False after kPatience.
  bool WaitDone() {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kPatience, [this] { return open_ == 0; });
  }
  bool WaitTokens(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return events_.size() >= count || open_ == 0; });
  }
  std::vector<int32_t> tokens(int choice = 0) const {
    std::vector<int32_t> ids;
    for (const TokenEvent& event : events_) {
      if (event.choice == choice) ids.push_back(event.id);
    }
    return ids;
  }
  std::string text() const {
    std::string text;
    for (const TokenEvent& event : events_) text += event.text;
    return text + result_.tail_text;
  }
  const absl::Status& status() const { return status_; }
  const SequenceResult& result() const { return result_; }
  std::chrono::steady_clock::time_point began() const { return began_; }  // its first token
  std::chrono::steady_clock::time_point ended_at() const { return ended_at_; }
  std::vector<TokenEvent> events() {
    std::lock_guard<std::mutex> lock(mutex_);
    return events_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int open_;
  std::set<int> ended_;
  absl::Status status_;
  SequenceResult result_;
  std::vector<TokenEvent> events_;
  std::chrono::steady_clock::time_point began_, ended_at_;
};

// Keeps frames as a sender would put them on the wire.
class FrameStore : public FrameSink {
 public:
  explicit FrameStore(FrameKind kind) : kind_(kind) {}
  absl::StatusOr<absl::Span<uint8_t>> Reserve(size_t max_bytes) override {
    payload_.resize(max_bytes);
    return absl::MakeSpan(payload_);
  }
  absl::Status Commit(const FrameCoverage& coverage, size_t bytes) override {
    payload_.resize(bytes);
    FrameHeader header{.kind = kind_, .sequence = static_cast<uint32_t>(frames.size()), .coverage = coverage};
    header.payload_bytes = static_cast<uint32_t>(bytes);
    const auto head = EncodeFrameHeader(header, payload_);
    frames.push_back({{head.begin(), head.end()}, payload_});
    return absl::OkStatus();
  }
  struct Frame {
    std::vector<uint8_t> header;
    std::vector<uint8_t> payload;
  };
  std::vector<Frame> frames;

 private:
  FrameKind kind_;
  std::vector<uint8_t> payload_;
};

struct Question {
  std::vector<int32_t> prompt;
  std::vector<int32_t> answer;  // greedy, end token included
};

std::vector<Question> Questions(size_t count) {
  std::ifstream file("tests/runtime/model/golden/chat.greedy.jsonl");
  std::vector<Question> questions;
  std::string line;
  while (questions.size() < count && std::getline(file, line)) {
    const auto golden = nlohmann::json::parse(line);
    questions.push_back({golden["prompt"], golden["bf16_kv"]["tokens"]});
  }
  return questions;
}

class EngineTest : public ::testing::Test {
 protected:
  EngineTest() { Restart({.kv_blocks = 256, .max_num_batched_tokens = 128}); }

  void Restart(const EngineOptions& options) {
    engine_.reset();
    if (model_ == nullptr) {
      device_ = OpenTestDevice().value();
      model_ = Transformer::Load(device_.get(), "deploy/demo/chat", {.compute = DType::kF32}).value();
      tokenizer_ = Tokenizer::Load("deploy/demo/chat").value();
    }
    engine_ = Engine::Start(model_.get(), tokenizer_.get(), options).value();
  }

  std::shared_ptr<Recorder> Ask(const Question& question, SamplingParams sampling = {.max_tokens = 24}) {
    auto recorder = std::make_shared<Recorder>(sampling.choices);
    auto id = engine_->Generate({question.prompt, std::move(sampling)}, recorder);
    EXPECT_TRUE(id.ok()) << std::string(id.status().message());
    if (id.ok()) last_id_ = *id;
    return recorder;
  }

  static std::vector<int32_t> WithoutEnd(std::vector<int32_t> tokens) {
    if (!tokens.empty() && tokens.back() == 2) tokens.pop_back();
    return tokens;
  }

  // Encodes [0, tokens) of a prompt on this engine, as the prefill server does.
  std::vector<FrameStore::Frame> PrefillFrames(const KvCodec& codec, const Question& question,
                                               int64_t tokens) {
    FrameStore store(codec.kind());
    auto recorder = std::make_shared<Recorder>();
    auto id = engine_->Prefill({question.prompt, tokens, kNever, &codec, &store}, recorder);
    EXPECT_TRUE(id.ok());
    EXPECT_TRUE(recorder->WaitDone());
    EXPECT_TRUE(recorder->status().ok());
    return std::move(store.frames);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Transformer> model_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Engine> engine_;
  SequenceId last_id_ = 0;
};

TEST_F(EngineTest, AnswersAsTheReferenceDoes) {
  for (const Question& question : Questions(5)) {
    const auto recorder = Ask(question);
    ASSERT_TRUE(recorder->WaitDone());
    EXPECT_TRUE(recorder->status().ok());
    EXPECT_EQ(recorder->tokens(), WithoutEnd(question.answer));
    EXPECT_EQ(recorder->result().reason, FinishReason::kStop);
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

TEST_F(EngineTest, ContinuesOnAHandedOverCache) {
  const auto codec = OpenCodec("raw", "", CodecSide::kConsumer, *model_).value();
  const auto encoder = OpenCodec("raw", "", CodecSide::kProducer, *model_).value();
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

TEST_F(EngineTest, ComputesRecomputedTokensAroundAHandoff) {
  const RecomputedTokensCodec codec(OpenCodec("raw", "", CodecSide::kConsumer, *model_).value(), 4, 8);
  for (const Question& question : Questions(3)) {
    const int64_t end = static_cast<int64_t>(question.prompt.size()) - 1 - 8;
    const auto frames = PrefillFrames(codec, question, end);
    for (const auto& frame : frames) {
      EXPECT_GE(DecodeFrameHeader(frame.header).value().coverage.token_begin, 4u);
    }
    auto recorder = std::make_shared<Recorder>();
    const SequenceId id =
        engine_->Generate({question.prompt, {.max_tokens = 24}, kNever, &codec, end}, recorder).value();
    for (const auto& frame : frames) {
      engine_->ApplyFrame(id, DecodeFrameHeader(frame.header).value(), frame.header, frame.payload, [] {});
    }
    ASSERT_TRUE(recorder->WaitDone());
    EXPECT_EQ(recorder->tokens(), WithoutEnd(question.answer));
    EXPECT_FALSE(recorder->result().fell_back);
    EXPECT_GT(recorder->result().times.recompute, 0.0);
  }
}

TEST_F(EngineTest, FallsBackToItsOwnPrefillWhenAFrameIsCorruptOrTheProducerIsLost) {
  const auto codec = OpenCodec("raw", "", CodecSide::kConsumer, *model_).value();
  const auto encoder = OpenCodec("raw", "", CodecSide::kProducer, *model_).value();
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
  LateHandoffTest() : codec_(OpenCodec("raw", "", CodecSide::kConsumer, *model_).value()) {}

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

  const std::unique_ptr<KvCodec> codec_;
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
  const auto encoder = OpenCodec("raw", "", CodecSide::kProducer, *model_).value();
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

TEST_F(EngineTest, EndsAWaitingSequenceAtItsDeadlineAndFreesItsBlocks) {
  const auto codec = OpenCodec("raw", "", CodecSide::kConsumer, *model_).value();
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
  const auto codec = OpenCodec("raw", "", CodecSide::kConsumer, *model_).value();
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
  std::filesystem::copy("deploy/demo/chat", directory);
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

TEST_F(EngineTest, ServesLossyBlocksToTheirFormatAlone) {
  const auto codec = OpenCodec("int4", "", CodecSide::kConsumer, *model_).value();
  const auto encoder = OpenCodec("int4", "", CodecSide::kProducer, *model_).value();
  const auto raw = OpenCodec("raw", "", CodecSide::kConsumer, *model_).value();
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
  EXPECT_EQ(engine_->CachedTokens(question.prompt, codec.get(), ""), handed_over / 16 * 16);
  EXPECT_EQ(engine_->CachedTokens(question.prompt, raw.get(), ""), 0);
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
  const auto codec = OpenCodec("raw", "", CodecSide::kConsumer, *model_).value();
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
  EXPECT_EQ(engine_->CachedTokens(question.prompt, codec.get(), ""), 0);
  EXPECT_GT(engine_->CachedTokens(question.prompt, nullptr, ""), 0);
  EXPECT_EQ(engine_->stats().fallbacks, 1);
  EXPECT_EQ(engine_->stats().kv_blocks_reserved, 0);
}

TEST_F(EngineTest, LetsAPrefillSkipWhatIsComputedAndNeedsNoFrames) {
  const auto codec = OpenCodec("raw", "", CodecSide::kProducer, *model_).value();
  const Question question = Questions(1)[0];
  const auto tokens = static_cast<int64_t>(question.prompt.size());
  const auto all = PrefillFrames(*codec, question, tokens);
  const uint64_t computed = engine_->stats().prompt_tokens;
  FrameStore store(codec->kind());
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
}  // namespace aludel
