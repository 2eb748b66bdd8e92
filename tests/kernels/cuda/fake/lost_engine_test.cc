#include <cuda_runtime_api.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/codec/open_codec.h"
#include "server/host/device_watch.h"
#include "server/process/stop_signal.h"
#include "server/process/timer.h"
#include "tests/kernels/cuda/fake/fake_cuda.h"
#include "tests/runtime/engine/engine_fixture.h"

// A card that is lost while an engine works, wired as the servers' mains are. One test, in a process of its own: what is lost
// stays lost.
namespace aludel::engine_testing {
namespace {

using cuda::fake::FailAtLaunch;
using ::testing::HasSubstr;

// Before the engine's thread begins, which shall not take the signal.
struct Stopping {
  StopSignal stop;
};
class LostEngine : public Stopping, public EngineTest {};

// Of more tokens than the first steps take.
std::vector<int32_t> LongPrompt() {
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 500; ++i) prompt.push_back(3 + i * 37 % 2000);
  return prompt;
}

TEST_F(LostEngine, EndsEveryRequestWithAnErrorAndThenTheProcess) {
  const uint64_t seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937_64 random(seed);
  Restart({.kv_blocks = 256, .max_num_batched_tokens = 32});
  const auto encoders = OpenEncoders("raw", "", *model_).value();
  const auto decoders = OpenDecoders("raw", "", *model_).value();
  const std::vector<Question> questions = Questions(3);
  const auto handed_over = static_cast<int64_t>(questions[0].prompt.size()) - 1;
  const std::vector<FrameStore::Frame> frames = PrefillFrames(*encoders, questions[0], handed_over);
  Timer timer;
  const DeviceWatch watch(&timer, StopSignal::Ask);
  EXPECT_TRUE(DeviceWatch::status().ok());

  // Waits for its cache, which comes when the card is lost.
  const auto handed = std::make_shared<Recorder>();
  const GenerateSpec spec{questions[0].prompt, {}, kNever, decoders.get(), handed_over};
  const SequenceId id = engine_->Generate(spec, handed).value();

  // It wants memory, which a lost card has none of.
  FrameStore sent(encoders->spec().kind);
  std::vector<std::shared_ptr<Recorder>> recorders = {std::make_shared<Recorder>()};
  ASSERT_TRUE(engine_->Prefill({LongPrompt(), 500, kNever, encoders.get(), &sent}, recorders[0]).ok());

  // In one of the next steps; steps that are replayed launch nothing by themselves, and no request ends before it.
  FailAtLaunch(static_cast<int64_t>(random() % 40), cudaErrorIllegalAddress);
  for (const Question& question : questions) {
    recorders.push_back(Ask(question, {.max_tokens = 700, .ignore_eos = true}));
  }
  for (const auto& recorder : recorders) {
    ASSERT_TRUE(recorder->WaitDone());
    EXPECT_EQ(recorder->status().code(), absl::StatusCode::kInternal) << recorder->status();
  }
  // Not ready, nor healthy, before the watch has looked.
  EXPECT_EQ(DeviceWatch::status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(DeviceWatch::status().message()), HasSubstr("illegal memory access"));

  // Requests that come until the process ends get an error, too: at once where they want memory.
  EXPECT_EQ(engine_->Generate(spec, std::make_shared<Recorder>()).status().code(),
            absl::StatusCode::kInternal);
  const auto late = Ask(questions[2]);
  for (const FrameStore::Frame& frame : frames) {
    engine_->ApplyFrame(id, DecodeFrameHeader(frame.header).value(), frame.header, frame.payload, [] {});
  }
  for (const auto& recorder : {late, handed}) {
    ASSERT_TRUE(recorder->WaitDone());
    EXPECT_FALSE(recorder->status().ok());
    EXPECT_TRUE(recorder->events().empty());
  }
  EXPECT_EQ(engine_->stats().kv_blocks_used, 0);
  EXPECT_EQ(engine_->stats().kv_blocks_reserved, 0);

  EXPECT_STREQ(stop.Wait(), "asked by itself") << "by the watch; main goes on to its end";
  engine_.reset();
  EXPECT_FALSE(DeviceWatch::status().ok()) << "what main returns";
}

}  // namespace
}  // namespace aludel::engine_testing
