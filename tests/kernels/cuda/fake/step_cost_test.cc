#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/kernels/cuda/fake/fake_cuda.h"
#include "tests/runtime/model/temporary_directory.h"
#include "tests/testing/test_model.h"

// What steps of models of real size ask of a card, counted and not run: launches, bytes and operations of one layer and of two,
// and from these of all.
namespace aludel::cuda::fake {
namespace {

struct Shape {
  const char* name;
  int64_t layers, hidden, ffn, heads, kv_heads, head_dim, vocab;

  int64_t q_dim() const { return heads * head_dim; }
  int64_t kv_dim() const { return kv_heads * head_dim; }
  // Bytes that a step of `rows` sequences of `context` tokens each cannot do without: all matrices, and what is in the cache.
  int64_t Bound(int64_t rows, int64_t context) const {
    const int64_t layer = hidden * (2 * q_dim() + 2 * kv_dim() + 3 * ffn) + rows * context * 2 * kv_dim();
    return static_cast<int64_t>(sizeof(Bf16)) * (layers * layer + vocab * hidden);
  }
};
constexpr Shape kLlama3b = {"llama-3b", 28, 3072, 8192, 24, 8, 128, 128256};
constexpr Shape kLlama8b = {"llama-8b", 32, 4096, 14336, 32, 8, 128, 128256};

constexpr int64_t kContext = 1024;
constexpr int64_t kMostRows = 64;

// A checkpoint of zeros, tied, of a few layers, which takes no room on disk.
void WriteZeros(const Shape& shape, const std::string& directory) {
  nlohmann::ordered_json header;
  int64_t end = 0;
  const auto add = [&](const std::string& name, std::vector<int64_t> dimensions) {
    const int64_t begin = end;
    int64_t bytes = sizeof(Bf16);
    for (const int64_t dimension : dimensions) bytes *= dimension;
    end += bytes;
    header[name] = {{"dtype", "BF16"}, {"shape", dimensions}, {"data_offsets", {begin, end}}};
  };
  add("model.embed_tokens.weight", {shape.vocab, shape.hidden});
  add("model.norm.weight", {shape.hidden});
  for (int64_t i = 0; i < shape.layers; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    add(layer + "input_layernorm.weight", {shape.hidden});
    add(layer + "post_attention_layernorm.weight", {shape.hidden});
    add(layer + "self_attn.q_proj.weight", {shape.q_dim(), shape.hidden});
    add(layer + "self_attn.k_proj.weight", {shape.kv_dim(), shape.hidden});
    add(layer + "self_attn.v_proj.weight", {shape.kv_dim(), shape.hidden});
    add(layer + "self_attn.o_proj.weight", {shape.hidden, shape.q_dim()});
    add(layer + "mlp.gate_proj.weight", {shape.ffn, shape.hidden});
    add(layer + "mlp.up_proj.weight", {shape.ffn, shape.hidden});
    add(layer + "mlp.down_proj.weight", {shape.hidden, shape.ffn});
  }
  std::string text = header.dump();
  text.resize((text.size() + 63) / 64 * 64 + 56, ' ');  // with its length before it, whole lines
  const auto length = static_cast<uint64_t>(text.size());
  const std::string path = directory + "/model.safetensors";
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << text;
  file.close();
  ASSERT_EQ(truncate(path.c_str(), static_cast<int64_t>(sizeof(length) + length) + end), 0);
  const nlohmann::ordered_json config = {{"architectures", {"LlamaForCausalLM"}},
                                         {"model_type", "llama"},
                                         {"hidden_size", shape.hidden},
                                         {"intermediate_size", shape.ffn},
                                         {"num_hidden_layers", shape.layers},
                                         {"num_attention_heads", shape.heads},
                                         {"num_key_value_heads", shape.kv_heads},
                                         {"head_dim", shape.head_dim},
                                         {"vocab_size", shape.vocab},
                                         {"max_position_embeddings", 131072},
                                         {"rms_norm_eps", 1e-5},
                                         {"rope_theta", 5e5},
                                         {"tie_word_embeddings", true},
                                         {"hidden_act", "silu"},
                                         {"eos_token_id", 2},
                                         {"torch_dtype", "bfloat16"}};
  std::ofstream(directory + "/config.json") << config.dump(1) << "\n";
}

struct Watcher final : LayerObserver {
  absl::Status OnLayer(const LayerSlice&) override { return absl::OkStatus(); }
};

struct StepCost {
  int64_t launches = 0;
  int64_t bytes = 0;

  StepCost operator+(const StepCost& other) const { return {launches + other.launches, bytes + other.bytes}; }
  StepCost operator-(const StepCost& other) const { return {launches - other.launches, bytes - other.bytes}; }
  StepCost operator*(int64_t times) const { return {launches * times, bytes * times}; }
};

// Of a decode step by rows; a token is drawn for each.
using CostsByRows = std::map<int64_t, StepCost>;

StepCost CostOfStep(TestModel& model, int64_t rows, bool fused) {
  const int32_t id = 5;
  Watcher watcher;
  std::vector<BatchItem> items(rows);
  for (BatchItem& item : items) {
    item.ids = absl::MakeConstSpan(&id, 1);
    item.position = kContext - 1;
    item.blocks = model.table().ids();
    item.draw = RowSampling{};
    if (!fused) item.observer = &watcher;  // wants to see what stands between the operations
  }
  std::vector<float> logits;
  ResetCounts();
  const absl::Status status = model.model().Forward(absl::MakeSpan(items), model.pool(), &logits);
  EXPECT_TRUE(status.ok()) << status;
  const Counts counted = counts();
  StepCost sum{counted.kernels(), 0};
  for (const auto& [kernel, launches] : counted.launches) {
    EXPECT_EQ(counted.costs.count(kernel), 1) << kernel << ": what it moves is not known";
  }
  for (const auto& [kernel, cost] : counted.costs) sum.bytes += cost.bytes;
  return sum;
}

// `shape`'s, from those of one layer and of two over a small vocabulary, whose head is replaced.
CostsByRows CostsOf(const Shape& shape, bool fused) {
  CostsByRows of[2];
  Shape small = shape;
  small.vocab = 1024;
  for (small.layers = 1; small.layers <= 2; ++small.layers) {
    const TemporaryDirectory files;
    WriteZeros(small, files.path());
    TestModel model(files.path(), {.max_rows = kMostRows}, DType::kBf16, kContext);
    for (const int64_t rows : {1, 4, 16, 64}) of[small.layers - 1][rows] = CostOfStep(model, rows, fused);
  }
  CostsByRows all;
  for (const auto& [rows, one] : of[0]) {
    // The head's matrix, and logits that are written and read.
    const StepCost head{0, (shape.vocab - small.vocab) * (shape.hidden * 2 + rows * 8)};
    all[rows] = one + (of[1][rows] - one) * (shape.layers - 1) + head;
  }
  return all;
}

// Of the time that copying the bound takes, at 4.3 TB/s, in that of a step whose launches each leave the memory idle for so long.
double Share(int64_t bound, const StepCost& cost, double idle_us) {
  constexpr double kBytesPerUs = 4.3e6;
  return static_cast<double>(bound) /
         (static_cast<double>(cost.bytes) + static_cast<double>(cost.launches) * idle_us * kBytesPerUs);
}

TEST(StepCosts, OfModelsOfRealSize) {
  CountOnly(true);
  std::ifstream file("tests/gpu/README.md");
  std::stringstream readme;
  readme << file.rdbuf();
  for (const Shape& shape : {kLlama3b, kLlama8b}) {
    const CostsByRows apart = CostsOf(shape, /*fused=*/false), fused = CostsOf(shape, /*fused=*/true);
    for (const auto& [rows, now] : fused) {
      const StepCost& before = apart.at(rows);
      const int64_t bound = shape.Bound(rows, kContext);
      // Each matrix is read once, and nothing else comes near it.
      EXPECT_GE(now.bytes, bound);
      EXPECT_LE(static_cast<double>(now.bytes), 1.05 * static_cast<double>(bound));
      EXPECT_LE(now.launches, before.launches);
      EXPECT_LE(now.bytes, before.bytes);
      if (rows <= 4) {
        EXPECT_LE(now.launches, 180);
      }
      const std::string line = absl::StrFormat(
          "| %s | %d | %d | %d | %.3f | %.3f | %.3f | %.2f | %.2f | %.2f | %.2f |", shape.name, rows,
          before.launches, now.launches, static_cast<double>(bound) / 1e9,
          static_cast<double>(before.bytes) / 1e9, static_cast<double>(now.bytes) / 1e9,
          Share(bound, before, 7), Share(bound, now, 7), Share(bound, before, 3), Share(bound, now, 3));
      std::printf("%s\n", line.c_str());
      EXPECT_NE(readme.str().find(line), std::string::npos) << "the table of tests/gpu/README.md is another";
    }
  }
  CountOnly(false);
}

}  // namespace
}  // namespace aludel::cuda::fake
