#include "runtime/bench/packing_benchmark.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/open_device.h"
#include "runtime/bench/plane_benchmark.h"
#include "runtime/codec/video/hevc.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

TEST(PackingBenchmark, CodesTheDemosLatentsInEveryPacking) {
  const auto device = OpenDevice({.name = "cpu", .threads = 1}).value();
  PackingBenchmarkOptions options;
  options.model.producer = "deploy/demo/base";
  options.model.consumers = {"deploy/demo/chat"};
  options.model.data = "deploy/demo/questions.jsonl";
  options.model.prompts = 3;
  options.codec = "deploy/demo/codec";
  options.format = "aludel-p0";
  options.repeats = 2;
  const auto result = BenchmarkPackings(options, device.get(), [](int64_t, int64_t) { return true; });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->tokens, 100);
  EXPECT_GT(result->symbols_per_token, 10);
  ASSERT_EQ(result->packings.size(), LoadHevcEncoder().ok() && LoadHevcDecoder().ok() ? 4u : 3u);
  for (const PackingTimes& packing : result->packings) {
    // Fewer prompts than the scales were fitted to: tables of their own would have few symbols each.
    EXPECT_GT(packing.bytes_per_token, 0.7 * result->entropy_bytes) << packing.packing;
    EXPECT_EQ(packing.encode_seconds > 0, packing.packing != "fixed") << packing.packing;
    EXPECT_EQ(packing.decode_seconds > 0, packing.packing != "fixed") << packing.packing;
  }
  EXPECT_LT(result->packings[2].bytes_per_token, result->packings[0].bytes_per_token);
  EXPECT_TRUE(absl::IsCancelled(
      BenchmarkPackings(options, device.get(), [](int64_t, int64_t) { return false; }).status()));
  options.format = "scd";
  EXPECT_THAT(
      BenchmarkPackings(options, device.get(), [](int64_t, int64_t) { return true; }).status().ToString(),
      HasSubstr("format \"scd\" has no packing"));
}

TEST(PlaneBenchmark, CodesTheDemosCacheInEveryTiling) {
  if (!LoadHevcEncoder().ok() || !LoadHevcDecoder().ok())
    GTEST_SKIP() << LoadHevcEncoder() << LoadHevcDecoder();
  const auto device = OpenDevice({.name = "cpu", .threads = 1}).value();
  CalibrateJob job;
  job.producer = "deploy/demo/base";
  job.consumers = {"deploy/demo/chat"};
  job.data = "deploy/demo/questions.jsonl";
  job.prompts = 1;
  const auto result = BenchmarkPlanes(job, device.get(), [](int64_t, int64_t) { return true; });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->tokens, 20);
  EXPECT_EQ(result->values_per_token, 2 * 8 * 128);  // README.md: eight layers of kv_dim 128
  EXPECT_GT(result->entropy_bits, 4);
  EXPECT_LT(result->entropy_bits, 8);
  ASSERT_GT(result->tilings.size(), 4u);
  for (const TilingTimes& times : result->tilings) {
    EXPECT_GT(times.bits_per_value, 4);
    EXPECT_GT(times.encode_seconds, 0);
    EXPECT_GT(times.decode_seconds, 0);
  }
}

TEST(WinsBelow, IsTheRateAtWhichBothTakeAsLong) {
  const PackingTimes plain{"plain", 100, 0, 0};
  const PackingTimes coded{"coded", 60, 3e-6, 5e-6};
  const double rate = WinsBelow(coded, plain);
  EXPECT_NEAR(8 * plain.bytes_per_token / rate, 8 * coded.bytes_per_token / rate + 8e-6, 1e-12);
  EXPECT_EQ(WinsBelow(plain, coded), 0);
  EXPECT_TRUE(std::isinf(WinsBelow({"free", 99, 0, 0}, plain)));
}

}  // namespace
}  // namespace aludel
