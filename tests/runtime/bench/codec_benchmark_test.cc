#include "runtime/bench/codec_benchmark.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/open_device.h"
#include "runtime/bench/coder_benchmark.h"
#include "runtime/bench/make_codec.h"
#include "runtime/calibrate/calibrate_aludel.h"
#include "runtime/codec/artifact/artifact.h"
#include "runtime/evaluate/compute_share.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

MakeCodecOptions DemoOptions(const TemporaryDirectory& directory) {
  MakeCodecOptions options;
  options.producer = "deploy/demo/base";
  options.consumer = "deploy/demo/chat";
  options.out = directory.File("codec");
  return options;
}

TEST(MakeCodec, StaysWithinRateAndComputeShare) {
  const TemporaryDirectory directory;
  MakeCodecOptions options = DemoOptions(directory);
  const auto small = MakeCodec(options);
  ASSERT_TRUE(small.ok()) << small.status();
  EXPECT_EQ(small->format, "aludel-p2");
  options.recomputed_layers = 0;
  options.bytes_per_token = 32;
  options.group_layers = 1;
  options.compute_share = 1;
  const auto grouped = MakeCodec(options);
  ASSERT_TRUE(grouped.ok()) << grouped.status();
  EXPECT_EQ(grouped->groups, 7);
  EXPECT_LE(grouped->bytes_per_token, 32);
  EXPECT_EQ(small->rank % 16, 0);
  EXPECT_GT(grouped->width, small->width);
  EXPECT_EQ(LoadArtifactManifest(options.out)->formats.size(), 2) << "formats that are there stay";
  options.recomputed_layers = 7;
  EXPECT_THAT(std::string(MakeCodec(options).status().message()),
              HasSubstr("--recomputed-layers is 7, want 0 to 6"));
}

TEST(MakeCodec, GivesScdItsPublishedShape) {
  const TemporaryDirectory directory;
  MakeCodecOptions options = DemoOptions(directory);
  options.preset = "scd";
  const auto made = MakeCodec(options);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->format, "scd");
  const auto manifest = LoadArtifactManifest(options.out);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  int patched = 0;
  for (const ArtifactLayer& layer : manifest->formats.at(0).layers) {
    patched += layer.mode == ScdMode::kPatch ? 1 : 0;
  }
  EXPECT_EQ(patched, 3);  // of the demo's eight
  EXPECT_EQ(made->bytes_per_token, 5 * (64 + 64) * 2 + 3 * 128 * 2);
  options.preset = "papers";
  EXPECT_THAT(std::string(MakeCodec(options).status().message()), HasSubstr("want aludel or scd"));
}

TEST(ComputeShare, GrowsWhereLittleLeavesNoDecoder) {
  const ModelConfig demo = ModelConfig::Load("deploy/demo/base").value();
  AludelShape shape;
  shape.recomputed_layers = 2;
  shape.groups = MakeGroups(demo, 2, 0);
  const double share = SensibleShare(demo, shape);
  EXPECT_GT(share, 0.1);
  EXPECT_LT(share, 0.2);
  ModelConfig wide = demo;
  wide.hidden = 8192;  // the same cache beside a wide residual
  wide.ffn = 28672;
  EXPECT_EQ(SensibleShare(wide, shape), 0.04);
}

TEST(CodecBenchmark, MeasuresEveryPartOfAHandoff) {
  const TemporaryDirectory directory;
  MakeCodecOptions made = DemoOptions(directory);
  ASSERT_TRUE(MakeCodec(made).ok());
  made.preset = "scd";
  ASSERT_TRUE(MakeCodec(made).ok());
  CodecBenchmarkOptions options;
  options.producer = "deploy/demo/base";
  options.consumer = "deploy/demo/chat";
  options.codec = directory.File("codec");
  options.formats = {"aludel-p2", "raw", "scd"};
  options.tokens = 48;
  options.repeats = 1;
  const auto device = OpenDevice({.threads = 1});
  const auto result = BenchmarkCodecs(options, device->get(), [](int64_t, int64_t) { return true; });
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->gemm_flops, 0);
  EXPECT_GT(result->prefill_seconds, 0);
  EXPECT_EQ(result->raw_bytes, 48 * 4096);
  ASSERT_EQ(result->formats.size(), 3);
  for (const CodecTimes& format : result->formats) {
    EXPECT_GT(format.encode_seconds, 0) << format.format;
    EXPECT_GT(format.reconstruct_seconds, 0) << format.format;
    EXPECT_GE(format.recompute_seconds, 0) << format.format;
    EXPECT_FALSE(format.spread.has_value());  // of one repeat
  }
  EXPECT_GT(result->formats[0].encode_flops, 0);
  EXPECT_LT(result->formats[0].bytes_per_token, result->formats[1].bytes_per_token);
  options.tokens = 100'000;
  EXPECT_THAT(
      std::string(
          BenchmarkCodecs(options, device->get(), [](int64_t, int64_t) { return true; }).status().message()),
      HasSubstr("--tokens is 100000, want 1 to the model's 1024"));
}

TEST(CoderBenchmark, MeasuresEveryCoderOfTheSameBytes) {
  CoderBenchmarkOptions options;
  options.tokens = 64;
  options.rank = 64;
  options.repeats = 2;
  const auto result = BenchmarkCoders(options, [](int64_t, int64_t) { return true; });
  ASSERT_TRUE(result.ok()) << result.status();
  std::vector<std::string> names;
  for (const CoderTimes& coder : result->coders) {
    names.push_back(coder.coder);
    EXPECT_EQ(coder.bytes, (coder.coder == "lossless" ? 2 : 1) * 64 * 64);
    EXPECT_EQ(coder.coded < coder.bytes, coder.coder != "copy") << coder.coder;
    EXPECT_GT(coder.encode_seconds, 0) << coder.coder;
    EXPECT_GT(coder.decode_seconds, 0) << coder.coder;
  }
  EXPECT_THAT(names, ::testing::ElementsAre("copy", "rans", "deflate", "lossless", "embedded"));
  EXPECT_TRUE(absl::IsCancelled(BenchmarkCoders(options, [](int64_t, int64_t) { return false; }).status()));
}

}  // namespace
}  // namespace aludel
