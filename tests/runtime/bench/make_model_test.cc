#include "runtime/bench/make_model.h"

#include <filesystem>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/model/weights/safetensors.h"
#include "tests/runtime/model/temporary_directory.h"
#include "tests/testing/test_model.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

bool GoOn(int64_t, int64_t) { return true; }

TEST(MakeModel, WritesAShardedCheckpointThatRuns) {
  TemporaryDirectory directory;
  int64_t last_done = 0, last_total = 0;
  const auto status = MakeModel({.shape = "tiny", .out = directory.path(), .shard_bytes = 200'000},
                                [&](int64_t done, int64_t total) {
                                  last_done = done;
                                  last_total = total;
                                  return true;
                                });
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(last_done, last_total);
  EXPECT_TRUE(std::filesystem::exists(directory.File("model.safetensors.index.json")));
  TestModel model(directory.path(), {.compute = DType::kF32}, DType::kF32, 16);
  const std::vector<int32_t> ids = {5, 99, 1000};
  for (const float logit : model.Run(ids)) ASSERT_LT(std::abs(logit), 20.0f);
}

TEST(MakeModel, RepeatsItselfWithTheSameSeedWhateverTheShards) {
  TemporaryDirectory a, b, c;
  ASSERT_TRUE(MakeModel({.shape = "tiny", .out = a.path()}, GoOn).ok());
  ASSERT_TRUE(MakeModel({.shape = "tiny", .out = b.path(), .shard_bytes = 200'000}, GoOn).ok());
  ASSERT_TRUE(MakeModel({.shape = "tiny", .out = c.path(), .seed = 2}, GoOn).ok());
  const auto bytes = [](const TemporaryDirectory& directory) {
    const ModelFiles files = ModelFiles::Open(directory.path()).value();
    const auto data = files.Find("model.layers.1.mlp.up_proj.weight").value()->data;
    return std::vector<uint8_t>(data.begin(), data.end());
  };
  EXPECT_EQ(bytes(a), bytes(b));
  EXPECT_NE(bytes(a), bytes(c));
}

TEST(MakeModel, HasAsManyLayersAsAreAskedFor) {
  TemporaryDirectory directory;
  ASSERT_TRUE(MakeModel({.shape = "tiny", .out = directory.path(), .layers = 1}, GoOn).ok());
  EXPECT_EQ(ModelConfig::Load(directory.path()).value().layers, 1);
  TestModel model(directory.path(), {.compute = DType::kF32}, DType::kF32, 16);
  for (const float logit : model.Run(std::vector<int32_t>{5, 99})) ASSERT_LT(std::abs(logit), 20.0f);
}

TEST(MakeModel, LeavesNothingBehindWhenItIsStopped) {
  TemporaryDirectory directory;
  const auto status = MakeModel({.shape = "tiny", .out = directory.path()},
                                [](int64_t done, int64_t total) { return done < total / 2; });
  EXPECT_TRUE(absl::IsCancelled(status)) << status;
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(MakeModel, RefusesShapesItDoesNotKnowAndDirectoriesInUse) {
  TemporaryDirectory directory;
  EXPECT_THAT(std::string(MakeModel({.shape = "llama-9b", .out = directory.path()}, GoOn).message()),
              HasSubstr("shape is \"llama-9b\", want one of tiny, "));
  directory.Write("notes.txt", "mine");
  EXPECT_THAT(std::string(MakeModel({.shape = "tiny", .out = directory.path()}, GoOn).message()),
              HasSubstr("found files, want an empty directory"));
  EXPECT_EQ(directory.Read("notes.txt"), "mine");
}

}  // namespace
}  // namespace aludel
