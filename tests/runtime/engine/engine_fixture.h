#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "gtest/gtest.h"
#include "kernels/open_device.h"
#include "runtime/codec/codec.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/engine_options.h"
#include "tests/runtime/model/temporary_directory.h"
#include "tests/testing/first_layers.h"
#include "tests/testing/greedy_golden.h"
#include "tests/testing/test_device.h"

namespace aludel::engine_testing {

// For what takes milliseconds, and under ThreadSanitizer on a busy machine half a minute.
inline constexpr std::chrono::minutes kPatience(2);
inline constexpr SteadyClock::time_point kNever = SteadyClock::time_point::max();

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
  void OnPromptScores(const PromptScores& scores) override {
    std::lock_guard<std::mutex> lock(mutex_);
    EXPECT_EQ(scores.begin, static_cast<int64_t>(scores_.size()) + 1);
    EXPECT_TRUE(events_.empty());
    largest_piece_ = std::max(largest_piece_, scores.tokens.size());
    scores_.insert(scores_.end(), scores.tokens.begin(), scores.tokens.end());
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
  const std::vector<PromptScores::Token>& scores() const { return scores_; }  // once it has ended
  size_t largest_piece() const { return largest_piece_; }
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
  std::vector<PromptScores::Token> scores_;
  size_t largest_piece_ = 0;
  std::chrono::steady_clock::time_point began_, ended_at_;
};

// Keeps frames as a sender would put them on the wire.
class FrameStore : public FrameSink {
 public:
  explicit FrameStore(FrameKind kind) : kind_(kind) {}
  absl::StatusOr<absl::Span<uint8_t>> Reserve(size_t max_bytes) override {
    return absl::MakeSpan(reserved_.emplace_back(max_bytes));
  }
  absl::Status Commit(const FrameCoverage& coverage, size_t bytes) override {
    std::vector<uint8_t> payload = std::move(reserved_.front());
    reserved_.pop_front();
    payload.resize(bytes);
    FrameHeader header{.kind = kind_, .sequence = static_cast<uint32_t>(frames.size()), .coverage = coverage};
    header.payload_bytes = static_cast<uint32_t>(bytes);
    const auto head = EncodeFrameHeader(header, payload);
    frames.push_back({{head.begin(), head.end()}, std::move(payload)});
    return absl::OkStatus();
  }
  struct Frame {
    std::vector<uint8_t> header;
    std::vector<uint8_t> payload;
  };
  std::vector<Frame> frames;

 private:
  FrameKind kind_;
  std::deque<std::vector<uint8_t>> reserved_;  // oldest first
};

// The model of these tests: the demo's, or of that the first layers alone, as many as ALUDEL_TEST_LAYERS says.
inline std::optional<int> TestLayers() {
  const char* const text = std::getenv("ALUDEL_TEST_LAYERS");
  int layers = 0;
  if (text == nullptr || !absl::SimpleAtoi(text, &layers)) return std::nullopt;
  return layers;
}
inline const std::string& EngineModel() {
  static const std::string directory = [] {
    if (!TestLayers()) return std::string("deploy/demo/chat");
    static const TemporaryDirectory first_layers;
    WriteFirstLayers("deploy/demo/chat", *TestLayers(), first_layers.path());
    return first_layers.path();
  }();
  return directory;
}

struct Question {
  std::vector<int32_t> prompt;
  std::vector<int32_t> answer;  // greedy, over a cache of bf16; at most 24 tokens, end token included
};

// On the CPU, the prompt in one go, then token by token.
inline std::vector<int32_t> AnswerOnTheCpu(Transformer& model, std::vector<int32_t> ids) {
  constexpr size_t kMostTokens = 24;
  const auto pool = BlockPool::Create(model.device(), model.MakeKvLayout(64, 16, DType::kBf16)).value();
  BlockTable blocks;
  EXPECT_TRUE(blocks.Grow(*pool, static_cast<int64_t>(ids.size() + kMostTokens)).ok());
  std::vector<int32_t> answer;
  for (int64_t position = 0; answer.size() < kMostTokens; position = static_cast<int64_t>(ids.size()) - 1) {
    BatchItem item{
        .ids = absl::MakeConstSpan(ids).subspan(position), .position = position, .blocks = blocks.ids()};
    item.wants_logits = true;
    std::vector<float> logits;
    EXPECT_TRUE(model.Forward(absl::MakeSpan(&item, 1), *pool, &logits).ok());
    ids.push_back(static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin()));
    answer.push_back(ids.back());
    if (answer.back() == model.config().eos_ids[0]) break;
  }
  return answer;
}

inline std::vector<Question> Questions(size_t count) {
  std::vector<Question> questions;
  std::unique_ptr<Device> cpu;
  std::unique_ptr<Transformer> first_layers;  // whose answers PyTorch has not given
  if (TestLayers()) {
    cpu = OpenDevice({.name = "cpu", .threads = 1}).value();
    first_layers = Transformer::Load(cpu.get(), EngineModel(), {.compute = DType::kF32}).value();
  }
  for (const GreedyGolden& golden : LoadGreedyGoldens("chat", count)) {
    questions.push_back({golden.prompt, first_layers == nullptr
                                            ? golden.answers.at("bf16_kv").tokens
                                            : AnswerOnTheCpu(*first_layers, golden.prompt)});
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
      model_ = Transformer::Load(device_.get(), EngineModel(), {.compute = DType::kF32}).value();
      tokenizer_ = Tokenizer::Load(EngineModel()).value();
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
  std::vector<FrameStore::Frame> PrefillFrames(const EncoderFactory& codec, const Question& question,
                                               int64_t tokens) {
    FrameStore store(codec.spec().kind);
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

}  // namespace aludel::engine_testing
