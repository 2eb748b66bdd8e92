#include "runtime/model/adapters/lora_adapter.h"

#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/model/weights/weight_stream.h"
#include "runtime/model/weights/weights.h"
#include "tests/runtime/model/adapters/adapter_server.h"
#include "tests/runtime/model/temporary_directory.h"
#include "tests/testing/test_model.h"

namespace aludel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kGolden[] = "tests/runtime/model/golden/";

std::vector<float> Logits(const ModelPath& path, const std::vector<int32_t>& ids,
                          const TransformerOptions& options) {
  TestModel model(path, options, options.compute, static_cast<int64_t>(ids.size()));
  return model.Run(ids);
}

// Adapters by golden/make_adapters.py, which computes them unmerged.
class GoldenAdapter : public ::testing::TestWithParam<const char*> {
 protected:
  GoldenAdapter() {
    const std::string directory = absl::StrCat(kGolden, "adapters/", GetParam());
    const auto golden = SafetensorsFile::Open(directory + "/golden.safetensors").value();
    path_ = {absl::StrCat(kGolden, "tiny/", golden->metadata().at("base")), directory};
    const SafetensorsEntry& ids = *golden->Find("ids").value();
    ids_.resize(static_cast<size_t>(ids.elements()));
    std::memcpy(ids_.data(), ids.data.data(), ids.data.size());
    const SafetensorsEntry& logits = *golden->Find("logits").value();
    const auto vocab = static_cast<size_t>(logits.shape[1]);
    const auto* values = reinterpret_cast<const float*>(logits.data.data());
    expected_.assign(values + (ids_.size() - 1) * vocab, values + ids_.size() * vocab);
  }

  // Of the last token's logits, in parts of the largest.
  float Error(const TransformerOptions& options) {
    return MaxDifference(Logits(path_, ids_, options), expected_) / Largest(expected_);
  }

  ModelPath path_{""};
  std::vector<int32_t> ids_;
  std::vector<float> expected_;
};

TEST_P(GoldenAdapter, IsTheUnmergedReference) {
  EXPECT_LT(Error({.compute = DType::kF32}), 1e-5f);
  EXPECT_LT(Error({.compute = DType::kBf16}), 0.03f);
}

TEST_P(GoldenAdapter, LoadsPastThePageCacheToTheSameBits) {
  const TransformerOptions past{.compute = DType::kF32, .stream = {.cached_share = 0}};
  EXPECT_EQ(Logits(path_, ids_, past), Logits(path_, ids_, {.compute = DType::kF32}));
}

TEST_P(GoldenAdapter, IsRoundedToIntegersAfterTheMerge) {
  const float base_error =
      MaxDifference(Logits(path_.base, ids_, {.compute = DType::kF32}), expected_) / Largest(expected_);
  const float error = Error({.compute = DType::kF32, .weights = WeightFormat::kInt8});
  EXPECT_LT(error, 0.1f);
  EXPECT_LT(error, 0.5f * base_error);
}

// Four bits lose more than the adapters of a tiny model change, so that what is lost is held against what the base
// loses.
TEST_P(GoldenAdapter, IsRoundedToFourBitsAfterTheMerge) {
  const TransformerOptions exact{.compute = DType::kF32};
  const TransformerOptions rounded{.compute = DType::kF32, .weights = WeightFormat::kInt4};
  const std::vector<float> base = Logits(path_.base, ids_, exact), base4 = Logits(path_.base, ids_, rounded);
  const std::vector<float> merged4 = Logits(path_, ids_, rounded);
  const float lost = MaxDifference(base4, base) / Largest(base);
  EXPECT_LT(MaxDifference(merged4, expected_) / Largest(expected_), 3 * lost);
  EXPECT_GT(MaxDifference(merged4, base4) / Largest(base), 0.01f) << "of the adapter something is left";
}

INSTANTIATE_TEST_SUITE_P(Peft, GoldenAdapter,
                         ::testing::Values("llama_list", "llama_all_linear", "llama_head", "mistral_layers",
                                           "qwen2_rslora", "qwen3_regex", "fp8_list"),
                         [](const auto& info) { return std::string(info.param); });

// A copy of the adapter llama_list, which updates q and v of llama_sharded, to be changed.
class LoraAdapterFiles : public ::testing::Test {
 protected:
  LoraAdapterFiles() {
    const std::string source = absl::StrCat(kGolden, "adapters/llama_list/");
    for (const char* file : {"adapter_config.json", "adapter_model.safetensors"}) {
      std::filesystem::copy_file(source + file, copy_.File(file));
    }
  }

  ModelPath Path() const { return {absl::StrCat(kGolden, "tiny/llama_sharded"), copy_.path()}; }
  std::string Error() const { return std::string(Check().message()); }
  absl::Status Check() const {
    const auto files = ModelFiles::Open(Path());
    if (!files.ok()) return files.status();
    return CheckWeights(*files, ModelConfig::Load(Path().base).value());
  }
  void Replace(const std::string& file, const std::string& from, const std::string& to) {
    const std::string text = copy_.Read(file);
    ASSERT_THAT(text, HasSubstr(from));
    copy_.Write(file, absl::StrReplaceAll(text, {{from, to}}));
  }
  // Rewrites the weights with some tensors changed or, by an empty name, left out.
  void Change(const std::function<void(SafetensorsTensor*)>& change,
              const std::vector<SafetensorsTensor>& more = {}) {
    {
      const auto file = SafetensorsFile::Open(copy_.File("adapter_model.safetensors")).value();
      std::vector<SafetensorsTensor> tensors;
      for (const auto& [name, entry] : file->entries()) {
        SafetensorsTensor tensor{name, entry.dtype, entry.shape, entry.data};
        change(&tensor);
        if (!tensor.name.empty()) tensors.push_back(std::move(tensor));
      }
      tensors.insert(tensors.end(), more.begin(), more.end());
      ASSERT_TRUE(WriteSafetensors(copy_.File("changed"), tensors, {}).ok());
    }
    std::filesystem::rename(copy_.File("changed"), copy_.File("adapter_model.safetensors"));
  }

  const TemporaryDirectory copy_;
};

constexpr char kQ0A[] = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
constexpr char kQ0B[] = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight";

TEST_F(LoraAdapterFiles, AGoodOneLoads) { EXPECT_EQ(Error(), ""); }

TEST_F(LoraAdapterFiles, AMissingTensorIsNamed) {
  Change([](SafetensorsTensor* tensor) {
    if (tensor->name == kQ0B) tensor->name.clear();
  });
  EXPECT_THAT(Error(), AllOf(HasSubstr("adapter_model.safetensors: no tensor " + std::string(kQ0B)),
                             HasSubstr("[64, 4]")));
}

TEST_F(LoraAdapterFiles, AWrongShapeOrTypeIsNamed) {
  Change([](SafetensorsTensor* tensor) {
    if (tensor->name == kQ0A) tensor->shape = {64, 4};
  });
  EXPECT_THAT(Error(), HasSubstr(absl::StrCat("tensor ", kQ0A, " has shape [64, 4], want [4, 64]")));
  Change([](SafetensorsTensor* tensor) {
    if (tensor->name != kQ0A) return;
    tensor->shape = {4, 64};
    tensor->dtype = "I16";
  });
  EXPECT_THAT(Error(), HasSubstr(absl::StrCat("tensor ", kQ0A, " has dtype I16, want BF16, F16 or F32")));
}

TEST_F(LoraAdapterFiles, ARankBesideTheConfigsIsNamed) {
  Replace("adapter_config.json", "\"r\": 4", "\"r\": 8");
  EXPECT_THAT(Error(), AllOf(HasSubstr("has shape [4, 64], want [8, 64] by adapter_config.json")));
}

TEST_F(LoraAdapterFiles, TensorsThatWouldChangeNothingAreNamed) {
  const std::vector<uint8_t> bytes(8);
  const auto error_with = [&](const std::string& name) {
    const SafetensorsTensor more{name, "BF16", {4}, bytes};
    Change(
        [&](SafetensorsTensor* tensor) {
          if (tensor->dtype == "BF16" && tensor->shape == std::vector<int64_t>{4}) tensor->name.clear();
        },
        {more});
    return Error();
  };
  const std::string prefix = "base_model.model.model.";
  EXPECT_THAT(error_with(prefix + "layers.0.mlp.up_proj.lora_A.weight"),
              HasSubstr("adapter_config.json does not name its module"));
  EXPECT_THAT(error_with(prefix + "layers.2.self_attn.q_proj.lora_A.weight"),
              HasSubstr("llama_sharded has no linear layer of this name"));
  EXPECT_THAT(error_with(prefix + "layers.0.self_attn.q_proj.lora_magnitude_vector"), HasSubstr("DoRA"));
  EXPECT_THAT(error_with(prefix + "embed_tokens.lora_embedding_A"), HasSubstr("embeddings are not served"));
  EXPECT_THAT(error_with(prefix + "embed_tokens.weight"),
              HasSubstr("want base_model.model.MODULE.lora_A.weight"));
  EXPECT_THAT(error_with("base_model.model.lm_head.modules_to_save.weight"), HasSubstr("whole modules"));
  EXPECT_THAT(error_with("base_model.model.lm_head.base_layer.weight"),
              HasSubstr("save_pretrained(save_embedding_layers=False)"));
}

TEST_F(LoraAdapterFiles, ATiedHeadCannotBeUpdatedAlone) {
  const std::string tied = absl::StrCat(kGolden, "tiny/llama_tied");
  const std::vector<uint8_t> bytes(8);
  Replace("adapter_config.json", "\"v_proj\"", "\"lm_head\"");
  Change(
      [](SafetensorsTensor* tensor) {
        if (!absl::StrContains(tensor->name, "q_proj")) tensor->name.clear();
      },
      {{"base_model.model.lm_head.lora_A.weight", "BF16", {4}, bytes}});
  const auto files = ModelFiles::Open({tied, copy_.path()});
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_THAT(std::string(CheckWeights(*files, ModelConfig::Load(tied).value()).message()),
              HasSubstr("is its embedding"));
}

TEST_F(LoraAdapterFiles, OneThatActsOnAPartOfAPromptIsNotMerged) {
  Replace("adapter_config.json", "\"lora_alpha\": 8",
          "\"lora_alpha\": 8, \"alora_invocation_tokens\": [1, 2]");
  EXPECT_THAT(Error(), AllOf(HasSubstr("adapter_config.json: alora_invocation_tokens"),
                             HasSubstr("among the adapters of a decode server")));
}

TEST_F(LoraAdapterFiles, EmbeddingsAreRefused) {
  Replace("adapter_config.json", "\"v_proj\"", "\"v_proj\", \"embed_tokens\"");
  EXPECT_THAT(Error(), AllOf(HasSubstr("adapter_config.json: target_modules names model.embed_tokens"),
                             HasSubstr("embeddings are not served")));
}

TEST_F(LoraAdapterFiles, SaysWhatLiesThereInPlaceOfAFile) {
  std::filesystem::rename(copy_.File("adapter_model.safetensors"), copy_.File("adapter_model.bin"));
  EXPECT_THAT(Error(), AllOf(HasSubstr("adapter_model.safetensors"), HasSubstr("PyTorch's pickle format")));
  std::filesystem::remove(copy_.File("adapter_config.json"));
  std::filesystem::rename(copy_.File("adapter_model.bin"), copy_.File("adapter_model.safetensors"));
  EXPECT_THAT(Error(), HasSubstr("adapter_config.json"));
}

TEST_F(LoraAdapterFiles, WeightsThatAreCutOffAreNamed) {
  const std::string whole = copy_.Read("adapter_model.safetensors");
  for (const size_t left : {whole.size() - 1, whole.size() / 2, size_t{100}, size_t{7}, size_t{0}}) {
    copy_.Write("adapter_model.safetensors", whole.substr(0, left));
    EXPECT_THAT(Error(), HasSubstr("adapter_model.safetensors")) << left;
  }
}

TEST_F(LoraAdapterFiles, EveryAdapterIsAModelOfItsOwn) {
  const std::string base = HashModel(Path().base).value();
  const std::string adapted = HashModel(Path()).value();
  EXPECT_NE(adapted, base);
  EXPECT_EQ(adapted, HashModel({Path().base, absl::StrCat(kGolden, "adapters/llama_list")}).value());
  TestModel model(Path(), {.compute = DType::kF32}, DType::kF32, 16);
  EXPECT_EQ(model.model().hash(), adapted);
  Replace("adapter_config.json", "\"lora_alpha\": 8", "\"lora_alpha\": 9");
  EXPECT_NE(HashModel(Path()).value(), adapted);
}

// Whatever stands in the files: an error or a model, and no byte outside of them is read.
TEST_F(LoraAdapterFiles, HostileBytesAreAnErrorOrAModel) {
  const std::map<std::string, std::string> good = {
      {"adapter_config.json", copy_.Read("adapter_config.json")},
      {"adapter_model.safetensors", copy_.Read("adapter_model.safetensors")}};
  std::mt19937 random(1);
  const auto device = OpenTestDevice().value();
  int refused = 0;
  constexpr int kTries = 400;
  for (int i = 0; i < kTries; ++i) {
    for (const auto& [file, text] : good) copy_.Write(file, text);
    const auto& [file, text] = *std::next(good.begin(), i % 2);
    std::string bytes = text;
    // Of the weights, the header counts: the numbers may be any.
    const size_t reach = std::min<size_t>(bytes.size(), 1000);
    for (uint32_t change = random() % 4; change != UINT32_MAX; --change) {
      const size_t at = random() % reach;
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = "0123456789[]{}\",:-"[random() % 18];
          break;
        case 2:
          bytes.erase(at, random() % 8);
          break;
        default:
          bytes.resize(bytes.size() - random() % std::min<size_t>(bytes.size(), 64));
      }
    }
    copy_.Write(file, bytes);
    const auto model = Transformer::Load(device.get(), Path(), {.compute = DType::kF32, .max_rows = 16});
    if (!model.ok()) {
      ++refused;
      EXPECT_FALSE(model.status().message().empty());
    }
  }
  EXPECT_GT(refused, kTries / 2);
}

}  // namespace
}  // namespace aludel
