#include "runtime/model/weights/weights.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/open_device.h"
#include "nlohmann/json.hpp"
#include "runtime/model/transformer.h"
#include "runtime/model/transformer_options.h"
#include "runtime/model/weights/file_map.h"
#include "runtime/model/weights/safetensors.h"
#include "tests/kernels/e4m3_reference.h"
#include "tests/runtime/model/temporary_directory.h"
#include "tests/testing/test_model.h"
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
  ASSERT_GE(seen.size(), 2);  // the file has 7 MB, a report comes every few
  for (size_t i = 1; i < seen.size(); ++i) EXPECT_GT(seen[i].first, seen[i - 1].first);
  EXPECT_EQ(seen.back().first, seen.back().second);
  EXPECT_EQ(seen.back().second, (*model)->load_report().bytes);
}

TEST(Weights, CountsParametersAndBytes) {
  const ModelConfig demo = ModelConfig::Load("deploy/demo/base").value();
  const ModelFiles files = ModelFiles::Open("deploy/demo/base").value();
  int64_t elements = 0;
  for (const auto& [name, entry] : files.entries()) {
    if (!absl::EndsWith(name, ".weight_scale")) elements += entry->elements();
  }
  EXPECT_EQ(CountParameters(demo), elements);
  for (const char* name : {"llama_tied", "llama_biases", "qwen2_bias", "qwen3_qk_norm", "llama_head_dim"}) {
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
  EXPECT_GT(int8, LoadedBytes(demo, DType::kBf16, WeightFormat::kFp8));
}

TEST(Weights, ATiedTableIsKeptOnceUnlessTheHeadIsRounded) {
  ModelConfig config = ModelConfig::Load("deploy/demo/base").value();
  const int64_t table = int64_t{config.vocab} * config.hidden;
  for (const auto& [format, saved] :
       {std::pair{WeightFormat::kBf16, 2 * table}, {WeightFormat::kInt8, int64_t{0}}}) {
    config.tied_embeddings = false;
    const int64_t untied = LoadedBytes(config, DType::kBf16, format);
    config.tied_embeddings = true;
    EXPECT_EQ(untied - LoadedBytes(config, DType::kBf16, format), saved);
  }
  const std::string directory = std::string(kTiny) + "llama_tied";
  const std::unique_ptr<Device> device = OpenDevice({.threads = 1}).value();
  const ModelFiles files = ModelFiles::Open(directory).value();
  const ModelConfig tied = ModelConfig::Load(directory).value();
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kInt8}) {
    const auto weights =
        Weights::Load(device.get(), files, tied, DType::kF32, format, {}, {}, nullptr).value();
    EXPECT_EQ(weights->own_head == nullptr, format == WeightFormat::kF32);
    EXPECT_EQ(weights->head().format(), format);
    EXPECT_EQ(weights->head().out_features(), tied.vocab);
  }
}

// The first layer's W of queries as a model keeps it, [outs, in].
struct Queries {
  std::vector<float> w;
  int64_t in;
};

// By multiplying rows that each are 1 at one input.
Queries QueriesOf(const std::string& name, WeightFormat format) {
  const std::string directory = std::string(kTiny) + name;
  const std::unique_ptr<Device> device = OpenDevice({.threads = 1}).value();
  const ModelFiles files = ModelFiles::Open(directory).value();
  const ModelConfig config = ModelConfig::Load(directory).value();
  const auto weights =
      Weights::Load(device.get(), files, config, DType::kF32, format, {}, {}, nullptr).value();
  const PackedMatrix& w = *weights->layers[0].q;
  const int64_t in = w.in_features(), outs = w.out_features();
  std::vector<float> ones(in * in, 0.0f), columns(in * outs);
  for (int64_t i = 0; i < in; ++i) ones[i * in + i] = 1.0f;
  device->ops().Gemm(TensorView::Of(ones.data(), in, in), w, nullptr, false,
                     TensorView::Of(columns.data(), in, outs), {});
  Queries queries{std::vector<float>(outs * in), in};
  for (int64_t i = 0; i < in; ++i) {
    for (int64_t o = 0; o < outs; ++o) queries.w[o * in + i] = columns[i * outs + o];
  }
  return queries;
}

// Each row at its nearest codes, the largest number for 448, by the reference.
std::vector<float> Rounded(const Queries& queries) {
  std::vector<float> rounded;
  for (auto row = queries.w.begin(); row != queries.w.end(); row += queries.in) {
    float largest = 0;
    for (auto x = row; x != row + queries.in; ++x) largest = std::max(largest, std::fabs(*x));
    for (auto x = row; x != row + queries.in; ++x) {
      const double value = E4m3Value(NearestE4m3(*x * (448.0f / largest)));
      rounded.push_back(static_cast<float>(value * (largest / 448.0f)));
    }
  }
  return rounded;
}

// The root of the mean square of how far `found` is from `wanted`, in parts of that of the numbers.
double Loss(const std::vector<float>& found, const std::vector<float>& wanted) {
  double error = 0, power = 0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    error += (double{found[i]} - wanted[i]) * (double{found[i]} - wanted[i]);
    power += double{wanted[i]} * wanted[i];
  }
  return std::sqrt(error / power);
}

TEST(Weights, CodesWithAScaleForEachRowOrForAllStayAsTheyAre) {
  for (const char* name : {"fp8_row", "fp8_tensor", "fp8_compressed_channel", "fp8_modelopt"}) {
    EXPECT_LT(Loss(QueriesOf(name, WeightFormat::kFp8).w, QueriesOf(name, WeightFormat::kF32).w), 1e-6)
        << name;
  }
}

// Numbers, and codes with a scale for each block, which one for each output rounds again.
TEST(Weights, AllElseIsRoundedToTheNearestCodes) {
  for (const char* name : {"llama_linear", "fp8_block"}) {
    const Queries stored = QueriesOf(name, WeightFormat::kF32);
    const std::vector<float> kept = QueriesOf(name, WeightFormat::kFp8).w;
    EXPECT_LT(Loss(kept, Rounded(stored)), 1e-6) << name;
    // As much as MODELS.md says.
    EXPECT_NEAR(Loss(kept, stored.w), 0.026, 0.004) << name;
  }
}

// A copy of a tiny model whose weight file a test changes.
class CorruptModel : public ::testing::Test {
 protected:
  void Copy(const std::string& name) {
    for (const char* file : {"config.json", "model.safetensors"}) {
      std::filesystem::copy_file(std::string(kTiny) + name + "/" + file, directory_.File(file));
    }
  }
  std::string Error() { return std::string(Load(directory_.path()).status().message()); }
  TemporaryDirectory directory_;
};

TEST_F(CorruptModel, ABiasThatTheArchitectureDoesNotHaveIsRefused) {
  Copy("qwen2_bias");
  std::string config = directory_.Read("config.json");
  config.replace(config.find("Qwen2ForCausalLM"), 16, "LlamaForCausalLM");
  directory_.Write("config.json", config);
  EXPECT_THAT(Error(), HasSubstr("k_proj.bias is a bias that is not zero, LlamaForCausalLM has none there"));
}

TEST_F(CorruptModel, AWeightThatTheArchitectureDoesNotHaveIsRefused) {
  Copy("qwen3_qk_norm");
  std::string config = directory_.Read("config.json");
  config.replace(config.find("Qwen3ForCausalLM"), 16, "LlamaForCausalLM");
  directory_.Write("config.json", config);
  EXPECT_THAT(Error(), HasSubstr("k_norm.weight is a weight, LlamaForCausalLM has none there"));
  std::filesystem::remove(directory_.File("config.json"));
  std::filesystem::remove(directory_.File("model.safetensors"));
  Copy("llama_linear");
  config = directory_.Read("config.json");
  const std::string field = "\"num_hidden_layers\": 2";
  config.replace(config.find(field), field.size(), "\"num_hidden_layers\": 1");
  directory_.Write("config.json", config);
  EXPECT_THAT(Error(), HasSubstr("model.layers.1."));
}

TEST_F(CorruptModel, AWrongShapeIsNamedBeforeAnythingIsRead) {
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

TEST_F(CorruptModel, AFileThatShrinksWhileItIsLoadedIsAnErrorAndNoSignal) {
  Copy("llama_linear");
  const ModelConfig config = ModelConfig::Load(directory_.path()).value();
  const ModelFiles files = ModelFiles::Open(directory_.path()).value();
  std::filesystem::resize_file(directory_.File("model.safetensors"), 4096);
  const auto device = OpenDevice({.threads = 1}).value();
  const auto weights =
      Weights::Load(device.get(), files, config, DType::kF32, WeightFormat::kF32, Stream{}, {}, nullptr);
  EXPECT_EQ(weights.status().code(), absl::StatusCode::kDataLoss) << weights.status();
}

// What a model loaded in this way is and answers.
struct Loaded {
  std::string hash;
  bool past_cache = false;
  std::vector<float> logits;
};

Loaded LoadAndRun(const std::string& directory, const StreamOptions& stream) {
  constexpr int kTokens = 12;
  TestModel model(directory, {.compute = DType::kF32, .rope_length = 64, .stream = stream}, DType::kF32,
                  kTokens);
  std::vector<int32_t> ids(kTokens);
  for (int i = 0; i < kTokens; ++i) ids[i] = 3 * i + 1;
  return {model.model().hash(), model.model().load_report().past_cache, model.Run(ids)};
}

// Past the cache a page that was dropped too early is zeros: every model must be the same both ways.
void ExpectTheSamePastTheCache(const std::string& directory) {
  const std::unique_ptr<FileMap> file = FileMap::Open(directory + "/config.json").value();
  const bool direct_reads = file->BypassCache();
  const Loaded cached = LoadAndRun(directory, {.cached_share = 1.0});
  EXPECT_FALSE(cached.past_cache);
  for (const int packers : {1, 4}) {
    const Loaded past = LoadAndRun(directory, {.cached_share = 0.0, .packers = packers});
    EXPECT_EQ(past.past_cache, direct_reads);
    EXPECT_EQ(past.hash, cached.hash);
    EXPECT_EQ(past.logits, cached.logits) << directory << ", " << packers << " packers";
  }
  if (!direct_reads) GTEST_SKIP() << "this file system has no direct reads";
}

class PastTheCache : public ::testing::TestWithParam<std::string> {};

TEST_P(PastTheCache, ATinyModelIsTheSame) { ExpectTheSamePastTheCache(kTiny + GetParam()); }

std::vector<std::string> TinyModels() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kTiny)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Tiny, PastTheCache, ::testing::ValuesIn(TinyModels()),
                         [](const auto& info) { return info.param; });

// A checkpoint whose matrices are several tasks each, in FP8 with grids of scales of several pages, or in
// int4; its embedding is its head.
class ManyTasks {
 public:
  explicit ManyTasks(const std::string& method) : method_(method) {
    nlohmann::json quantization = {{"quant_method", method}};
    if (method == "fp8") quantization["weight_block_size"] = {kBlock, kBlock};
    if (method == "awq") quantization.update({{"bits", 4}, {"group_size", kBlock}});
    const nlohmann::json config = {{"architectures", {"LlamaForCausalLM"}},
                                   {"hidden_size", kHidden},
                                   {"intermediate_size", kFfn},
                                   {"num_hidden_layers", 1},
                                   {"num_attention_heads", 8},
                                   {"vocab_size", kVocab},
                                   {"max_position_embeddings", 64},
                                   {"tie_word_embeddings", true},
                                   {"quantization_config", quantization}};
    directory_.Write("config.json", config.dump());
    Add("model.embed_tokens.weight", "BF16", {kVocab, kHidden}, Numbers(kVocab * kHidden));
    Add("model.norm.weight", "BF16", {kHidden}, Numbers(kHidden));
    const std::string layer = "model.layers.0.";
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
      Add(layer + norm + ".weight", "BF16", {kHidden}, Numbers(kHidden));
    }
    for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
      AddMatrix(layer + "self_attn." + name, kHidden, kHidden);
    }
    AddMatrix(layer + "mlp.gate_proj", kFfn, kHidden);
    AddMatrix(layer + "mlp.up_proj", kFfn, kHidden);
    AddMatrix(layer + "mlp.down_proj", kHidden, kFfn);
    for (size_t i = 0; i < tensors_.size(); ++i) tensors_[i].data = data_[i];
    EXPECT_TRUE(WriteSafetensors(directory_.File("model.safetensors"), tensors_, {}).ok());
  }
  const std::string& path() const { return directory_.path(); }

 private:
  static constexpr int64_t kBlock = 64;
  static constexpr int64_t kHidden = 512;
  static constexpr int64_t kFfn = 257 * kBlock;  // times kHidden: a little more than one task
  static constexpr int64_t kVocab = kFfn;
  using Bytes = std::vector<uint8_t>;

  void Add(const std::string& name, const std::string& dtype, std::vector<int64_t> shape, Bytes bytes) {
    tensors_.push_back({name, dtype, std::move(shape), {}});
    data_.push_back(std::move(bytes));
  }
  void AddMatrix(const std::string& name, int64_t rows, int64_t cols) {
    if (method_ == "fp8") {
      Bytes bytes = RandomBytes(rows * cols);
      for (uint8_t& byte : bytes) byte = (byte & 0x80) | 0x20 | (byte & 0x1f);  // 2^-3 to 2
      Add(name + ".weight", "F8_E4M3", {rows, cols}, std::move(bytes));
      const int64_t blocks = (rows / kBlock) * (cols / kBlock);
      Add(name + ".weight_scale_inv", "F32", {rows / kBlock, cols / kBlock}, Scales(blocks));
    } else {
      const int64_t groups = cols / kBlock;
      Add(name + ".qweight", "I32", {cols, rows / 8}, RandomBytes(rows * cols / 2));
      Add(name + ".qzeros", "I32", {groups, rows / 8}, RandomBytes(groups * rows / 2));
      Add(name + ".scales", "F32", {groups, rows}, Scales(groups * rows));
    }
  }
  Bytes RandomBytes(int64_t size) {
    Bytes bytes(size);
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<uint8_t>(random_()); });
    return bytes;
  }
  // bf16 of 2^-7 to 2^-5.
  Bytes Numbers(int64_t count) {
    Bytes bytes = RandomBytes(2 * count);
    for (int64_t i = 0; i < count; ++i) bytes[2 * i + 1] = 0x3c;
    return bytes;
  }

  // f32 around 0.1.
  Bytes Scales(int64_t count) {
    std::vector<float> scales(count);
    for (float& scale : scales) scale = 0.05f + static_cast<float>(random_() % 1000) * 1e-4f;
    const auto* bytes = reinterpret_cast<const uint8_t*>(scales.data());
    return Bytes(bytes, bytes + scales.size() * sizeof(float));
  }

  const std::string method_;
  std::mt19937 random_{7};
  TemporaryDirectory directory_;
  std::vector<Bytes> data_;
  std::vector<SafetensorsTensor> tensors_;
};

TEST(Weights, ScalesThatSeveralTasksReadOutliveTheFirst) {
  ExpectTheSamePastTheCache(ManyTasks("fp8").path());
}

TEST(Weights, AnInt4MatrixIsSeveralTasks) { ExpectTheSamePastTheCache(ManyTasks("awq").path()); }

}  // namespace
}  // namespace aludel
