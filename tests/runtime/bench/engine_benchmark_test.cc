#include "runtime/bench/engine_benchmark.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/open_device.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

class EngineBenchmarkTest : public ::testing::Test {
 protected:
  EngineBenchmarkTest() : device_(OpenDevice({}).value()) {
    options_.model = "deploy/demo/base";
    options_.requests = 5;
    options_.alone = 2;
    options_.shared_tokens = 48;
    options_.own_tokens = 8;
    options_.output_tokens = 6;
    options_.max_num_batched_tokens = 48;
  }
  absl::StatusOr<EngineBenchmark> Run() {
    return BenchmarkEngine(options_, device_.get(), [](int64_t, int64_t) { return true; });
  }
  std::unique_ptr<Device> device_;
  EngineBenchmarkOptions options_;
};

TEST_F(EngineBenchmarkTest, SeesEveryTokenOfEveryRequest) {
  const auto result = Run();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->together.ttft.size(), 5);
  EXPECT_EQ(result->together.gaps.size(), 5 * 5);
  EXPECT_EQ(result->alone.ttft.size(), 2);
  EXPECT_EQ(result->alone.gaps.size(), 2 * 5);
  for (const EngineRun* run : {&result->together, &result->alone}) {
    EXPECT_GT(run->forward_seconds, 0);
    EXPECT_GT(run->seconds, 0);
    EXPECT_EQ(run->preemptions, 0);
    EXPECT_EQ(run->prefix_queries, 56 * run->requests);
    // The first one computes what all share.
    EXPECT_EQ(run->prefix_hits, 48 * (run->requests - 1));
  }
  EXPECT_EQ(result->same_answers, 2);
  EXPECT_EQ(result->alone.most_steps, 1);
  EXPECT_EQ(result->step_bound, 1);
  EXPECT_LE(result->together.most_steps, 1);
}

TEST_F(EngineBenchmarkTest, SaysWhatDoesNotFit) {
  options_.own_tokens = 0;
  EXPECT_THAT(std::string(Run().status().message()), HasSubstr("--own-tokens"));
  options_.own_tokens = 1000;
  EXPECT_THAT(std::string(Run().status().message()), HasSubstr("1054 tokens, the model's context is 1024"));
  EXPECT_EQ(BenchmarkEngine(EngineBenchmarkOptions{.model = "no/where"}, device_.get(),
                            [](int64_t, int64_t) { return true; })
                .status()
                .code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace aludel
