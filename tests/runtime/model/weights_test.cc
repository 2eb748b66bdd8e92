#include "runtime/model/weights.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/model/transformer.h"
#include "tests/runtime/model/temporary_directory.h"
#include "xxhash.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

constexpr char kTiny[] = "tests/runtime/model/golden/tiny/";

absl::StatusOr<std::unique_ptr<Transformer>> Load(const std::string& directory,
                                                  const LoadProgress& progress = nullptr) {
  static const std::unique_ptr<Device> device = OpenDevice({.threads = 1}).value();
  return Transformer::Load(device.get(), directory, {.compute = DType::kF32}, progress);
}

// The definition, written once more: XXH3 of 128 bits over config.json and the weight files in name order.
std::string HashOf(const std::vector<std::string>& paths) {
  std::string all;
  for (const std::string& path : paths) {
    std::ifstream file(path, std::ios::binary);
    all.append(std::istreambuf_iterator<char>(file), {});
  }
  const XXH128_hash_t hash = XXH3_128bits(all.data(), all.size());
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, hash);
  return absl::BytesToHexString({reinterpret_cast<const char*>(canonical.digest), sizeof(canonical.digest)});
}

TEST(Weights, LoadingGivesTheHashOfTheFiles) {
  const std::string directory = std::string(kTiny) + "llama_sharded";
  const std::string shard = directory + "/model-0000";
  const std::string expected = HashOf({directory + "/config.json", shard + "1-of-00003.safetensors",
                                       shard + "2-of-00003.safetensors", shard + "3-of-00003.safetensors"});
  EXPECT_EQ(Load(directory).value()->hash(), expected);
  EXPECT_EQ(HashModel(directory).value(), expected);
}

TEST(Weights, ReportsProgressUpToTheLastByte) {
  std::vector<std::pair<int64_t, int64_t>> seen;
  const auto model =
      Load("deploy/demo/base", [&](int64_t done, int64_t total) { seen.emplace_back(done, total); });
  ASSERT_TRUE(model.ok());
  ASSERT_GE(seen.size(), 3);
  for (size_t i = 1; i < seen.size(); ++i) EXPECT_GT(seen[i].first, seen[i - 1].first);
  EXPECT_EQ(seen.back().first, seen.back().second);
  EXPECT_EQ(seen.back().second, (*model)->load_report().bytes);
}

TEST(Weights, CountsParametersAndBytes) {
  const ModelConfig demo = ModelConfig::Load("deploy/demo/base").value();
  const ModelFiles files = ModelFiles::Open("deploy/demo/base").value();
  int64_t elements = 0;
  for (const auto& [name, entry] : files.entries()) elements += entry->elements();
  EXPECT_EQ(CountParameters(demo), elements);
  for (const char* name : {"llama_tied", "qwen2_bias", "qwen3_qk_norm", "llama_head_dim"}) {
    const std::string directory = std::string(kTiny) + name;
    const ModelFiles tiny_files = ModelFiles::Open(directory).value();
    int64_t count = 0;
    for (const auto& [tensor, entry] : tiny_files.entries()) count += entry->elements();
    EXPECT_EQ(CountParameters(ModelConfig::Load(directory).value()), count) << name;
  }
  const int64_t bf16 = LoadedBytes(demo, DType::kBf16, WeightFormat::kBf16);
  EXPECT_GT(LoadedBytes(demo, DType::kF32, WeightFormat::kF32), bf16);
  const int64_t int8 = LoadedBytes(demo, DType::kBf16, WeightFormat::kInt8);
  EXPECT_GT(bf16, int8);
  EXPECT_GT(int8, LoadedBytes(demo, DType::kBf16, WeightFormat::kInt4));
}

// A copy of a tiny model whose weight file a test changes.
class SpoiledModel : public ::testing::Test {
 protected:
  void Copy(const std::string& name) {
    for (const char* file : {"config.json", "model.safetensors"}) {
      std::filesystem::copy_file(std::string(kTiny) + name + "/" + file, directory_.File(file));
    }
  }
  std::string Error() { return std::string(Load(directory_.path()).status().message()); }
  TemporaryDirectory directory_;
};

TEST_F(SpoiledModel, ABiasThatTheArchitectureDoesNotHaveIsRefused) {
  Copy("qwen2_bias");
  std::string config = directory_.Read("config.json");
  config.replace(config.find("Qwen2ForCausalLM"), 16, "LlamaForCausalLM");
  directory_.Write("config.json", config);
  EXPECT_THAT(Error(), HasSubstr("k_proj.bias is a bias that is not zero, LlamaForCausalLM has none there"));
}

TEST_F(SpoiledModel, AWrongShapeIsNamedBeforeAnythingIsRead) {
  Copy("llama_linear");
  std::string config = directory_.Read("config.json");
  const std::string field = "\"intermediate_size\": 48";
  config.replace(config.find(field), field.size(), "\"intermediate_size\": 40");
  directory_.Write("config.json", config);
  EXPECT_THAT(Error(), HasSubstr("mlp.gate_proj.weight has shape [48, 64], config.json wants [40, 64]"));
  const ModelConfig parsed = ModelConfig::Load(directory_.path()).value();
  EXPECT_THAT(std::string(CheckWeights(ModelFiles::Open(directory_.path()).value(), parsed).message()),
              HasSubstr("has shape [48, 64]"));
}

TEST_F(SpoiledModel, AFileThatShrinksWhileItIsLoadedIsAnErrorAndNoSignal) {
  Copy("llama_linear");
  const ModelConfig config = ModelConfig::Load(directory_.path()).value();
  const ModelFiles files = ModelFiles::Open(directory_.path()).value();
  std::filesystem::resize_file(directory_.File("model.safetensors"), 4096);
  const auto device = OpenDevice({.threads = 1}).value();
  const auto weights =
      Weights::Load(device.get(), files, config, DType::kF32, WeightFormat::kF32, Stream{}, nullptr);
  EXPECT_EQ(weights.status().code(), absl::StatusCode::kDataLoss) << weights.status();
}

}  // namespace
}  // namespace aludel
