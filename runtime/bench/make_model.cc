#include "runtime/bench/make_model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/tensor.h"
#include "nlohmann/json.hpp"
#include "runtime/model/weights/safetensors.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

using nlohmann::ordered_json;

struct Shape {
  const char* name;
  const char* architecture;
  const char* model_type;
  int64_t layers, hidden, ffn, heads, kv_heads, head_dim, vocab;
  double rope_theta;
  double llama3_factor;  // 0: no rope scaling
  int64_t max_positions;
  double norm_eps;
  bool tied, qkv_bias, qk_norm;
};

// As the published configs of these models have them. "tiny" is for tests; "llama-1b-32k" has Llama-3.2-1B's
// layers and Llama-2's vocabulary, so that the layers are what is measured.
constexpr Shape kShapes[] = {
    {"tiny", "LlamaForCausalLM", "llama", 2, 64, 96, 4, 2, 16, 4096, 1e4, 0, 2048, 1e-5, false, false, false},
    {"stories-42m", "LlamaForCausalLM", "llama", 8, 512, 1376, 8, 8, 64, 32000, 1e4, 0, 1024, 1e-5, true,
     false, false},
    {"llama-1b", "LlamaForCausalLM", "llama", 16, 2048, 8192, 32, 8, 64, 128256, 5e5, 32, 131072, 1e-5, true,
     false, false},
    {"llama-1b-32k", "LlamaForCausalLM", "llama", 16, 2048, 8192, 32, 8, 64, 32000, 1e4, 0, 4096, 1e-5, false,
     false, false},
    {"tinyllama-1.1b", "LlamaForCausalLM", "llama", 22, 2048, 5632, 32, 4, 64, 32000, 1e4, 0, 2048, 1e-5,
     false, false, false},
    {"llama-3b", "LlamaForCausalLM", "llama", 28, 3072, 8192, 24, 8, 128, 128256, 5e5, 32, 131072, 1e-5, true,
     false, false},
    {"llama-8b", "LlamaForCausalLM", "llama", 32, 4096, 14336, 32, 8, 128, 128256, 5e5, 8, 131072, 1e-5,
     false, false, false},
    {"mistral-7b", "MistralForCausalLM", "mistral", 32, 4096, 14336, 32, 8, 128, 32768, 1e6, 0, 32768, 1e-5,
     false, false, false},
    {"smollm2-135m", "LlamaForCausalLM", "llama", 30, 576, 1536, 9, 3, 64, 49152, 1e5, 0, 8192, 1e-5, true,
     false, false},
    {"qwen2-0.5b", "Qwen2ForCausalLM", "qwen2", 24, 896, 4864, 14, 2, 64, 151936, 1e6, 0, 32768, 1e-6, true,
     true, false},
    {"qwen2-7b", "Qwen2ForCausalLM", "qwen2", 28, 3584, 18944, 28, 4, 128, 152064, 1e6, 0, 32768, 1e-6, false,
     true, false},
    {"qwen3-8b", "Qwen3ForCausalLM", "qwen3", 36, 4096, 12288, 32, 8, 128, 151936, 1e6, 0, 40960, 1e-6, false,
     false, true},
};

// A tensor to be: ones where `deviation` is 0, else uniform with this standard deviation.
struct Planned {
  SafetensorsSpec spec;
  double deviation = 0.0;
};

std::vector<Planned> PlanTensors(const Shape& shape) {
  std::vector<Planned> plan;
  const auto add = [&](std::string name, std::vector<int64_t> dimensions, double deviation) {
    size_t bytes = sizeof(Bf16);
    for (const int64_t dimension : dimensions) bytes *= static_cast<size_t>(dimension);
    plan.push_back({{std::move(name), "BF16", std::move(dimensions), bytes}, deviation});
  };
  // Deviation 1/sqrt(columns) keeps a unit-sized input unit-sized, so that no activation overflows.
  const auto matrix = [&](std::string name, int64_t rows, int64_t columns) {
    add(std::move(name), {rows, columns}, 1.0 / std::sqrt(static_cast<double>(columns)));
  };
  const int64_t q = shape.heads * shape.head_dim;
  const int64_t kv = shape.kv_heads * shape.head_dim;
  add("model.embed_tokens.weight", {shape.vocab, shape.hidden}, shape.tied ? 0.02 : 1.0);
  for (int64_t i = 0; i < shape.layers; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    const std::string attention = layer + "self_attn.";
    add(layer + "input_layernorm.weight", {shape.hidden}, 0);
    matrix(layer + "mlp.down_proj.weight", shape.hidden, shape.ffn);
    matrix(layer + "mlp.gate_proj.weight", shape.ffn, shape.hidden);
    matrix(layer + "mlp.up_proj.weight", shape.ffn, shape.hidden);
    add(layer + "post_attention_layernorm.weight", {shape.hidden}, 0);
    if (shape.qk_norm) add(attention + "k_norm.weight", {shape.head_dim}, 0);
    if (shape.qkv_bias) add(attention + "k_proj.bias", {kv}, 0.5);
    matrix(attention + "k_proj.weight", kv, shape.hidden);
    matrix(attention + "o_proj.weight", shape.hidden, q);
    if (shape.qk_norm) add(attention + "q_norm.weight", {shape.head_dim}, 0);
    if (shape.qkv_bias) add(attention + "q_proj.bias", {q}, 0.5);
    matrix(attention + "q_proj.weight", q, shape.hidden);
    if (shape.qkv_bias) add(attention + "v_proj.bias", {kv}, 0.5);
    matrix(attention + "v_proj.weight", kv, shape.hidden);
  }
  add("model.norm.weight", {shape.hidden}, 0);
  if (!shape.tied) matrix("lm_head.weight", shape.vocab, shape.hidden);
  return plan;
}

ordered_json MakeConfig(const Shape& shape) {
  ordered_json config = {{"architectures", {shape.architecture}},
                         {"model_type", shape.model_type},
                         {"hidden_size", shape.hidden},
                         {"intermediate_size", shape.ffn},
                         {"num_hidden_layers", shape.layers},
                         {"num_attention_heads", shape.heads},
                         {"num_key_value_heads", shape.kv_heads},
                         {"head_dim", shape.head_dim},
                         {"vocab_size", shape.vocab},
                         {"max_position_embeddings", shape.max_positions},
                         {"rms_norm_eps", shape.norm_eps},
                         {"rope_theta", shape.rope_theta},
                         {"tie_word_embeddings", shape.tied},
                         {"hidden_act", "silu"},
                         {"bos_token_id", 1},
                         {"eos_token_id", 2},
                         {"torch_dtype", "bfloat16"}};
  if (std::string(shape.model_type) == "mistral") config["sliding_window"] = nullptr;
  if (shape.llama3_factor > 0) {
    config["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", shape.llama3_factor},
                              {"low_freq_factor", 1.0},
                              {"high_freq_factor", 4.0},
                              {"original_max_position_embeddings", 8192}};
  }
  return config;
}

// The values of one tensor, a piece at a time. Every tensor starts a stream of its own, so that its values do
// not depend on what was written before it.
class RandomTensor {
 public:
  RandomTensor(uint64_t seed, size_t index, double deviation)
      : state_(seed * 0x9e3779b97f4a7c15u + index * 0xd1b54a32d192ed03u),
        scale_(static_cast<float>(deviation * std::sqrt(3.0) / 32768.0)) {}

  // `out` holds a multiple of four values except at the end of the tensor.
  void Fill(absl::Span<Bf16> out) {
    if (scale_ == 0.0f) {
      std::fill(out.begin(), out.end(), ToBf16(1.0f));
      return;
    }
    for (size_t i = 0; i < out.size(); i += 4) {
      const uint64_t bits = Next();
      for (size_t j = 0; j < std::min<size_t>(4, out.size() - i); ++j) {
        out[i + j] = ToBf16(scale_ * static_cast<float>(static_cast<int16_t>(bits >> (16 * j))));
      }
    }
  }

 private:
  uint64_t Next() {  // splitmix64 (Steele, Lea & Flood 2014)
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  uint64_t state_;
  float scale_;
};

// Consecutive tensors into shards of at most `shard_bytes`, at least one tensor each.
std::vector<std::vector<Planned>> CutShards(const std::vector<Planned>& plan, int64_t shard_bytes) {
  std::vector<std::vector<Planned>> shards;
  int64_t filled = 0;
  for (const Planned& tensor : plan) {
    const auto bytes = static_cast<int64_t>(tensor.spec.bytes);
    if (shards.empty() || filled + bytes > shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(tensor);
    filled += bytes;
  }
  return shards;
}

// Writes the shards of one model, remembering how far it is.
class ShardWriter {
 public:
  ShardWriter(const MakeModelOptions& options, int64_t total,
              const std::function<bool(int64_t, int64_t)>& progress)
      : options_(options), total_(total), progress_(progress), piece_(size_t{1} << 20) {}

  absl::Status Write(const std::string& file, const std::vector<Planned>& tensors) {
    std::vector<SafetensorsSpec> specs;
    for (const Planned& tensor : tensors) specs.push_back(tensor.spec);
    RandomTensor random(options_.seed, written_, tensors[0].deviation);
    const auto source = [&](size_t index, size_t offset) -> absl::StatusOr<absl::Span<const uint8_t>> {
      if (offset == 0) random = RandomTensor(options_.seed, written_++, tensors[index].deviation);
      const size_t count = std::min(piece_.size(), (specs[index].bytes - offset) / sizeof(Bf16));
      random.Fill(absl::MakeSpan(piece_.data(), count));
      done_ += static_cast<int64_t>(count * sizeof(Bf16));
      if (!progress_(done_, total_)) return absl::CancelledError("stopped");
      return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(piece_.data()), count * sizeof(Bf16));
    };
    return StreamSafetensors(absl::StrCat(options_.out, "/", file), specs, {{"format", "pt"}}, source);
  }

 private:
  const MakeModelOptions& options_;
  const int64_t total_;
  const std::function<bool(int64_t, int64_t)>& progress_;
  std::vector<Bf16> piece_;
  size_t written_ = 0;
  int64_t done_ = 0;
};

absl::Status WriteJson(const std::string& path, const ordered_json& value) {
  std::ofstream file(path, std::ios::binary);
  file << value.dump(1) << "\n";
  file.close();
  return file.good() ? absl::OkStatus() : absl::UnavailableError(absl::StrCat(path, ": cannot be written"));
}

absl::Status CopyTokenizer(const std::string& from, const std::string& to) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    std::error_code error;
    std::filesystem::copy_file(absl::StrCat(from, "/", name), absl::StrCat(to, "/", name), error);
    if (error) return absl::UnavailableError(absl::StrCat(from, "/", name, ": ", error.message()));
  }
  return absl::OkStatus();
}

// Makes the directory, or accepts an empty one, on a disk that has room for the model.
absl::Status PrepareDirectory(const std::string& directory, int64_t bytes) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return absl::UnavailableError(absl::StrCat(directory, ": ", error.message()));
  if (!std::filesystem::is_empty(directory, error) || error) {
    return absl::AlreadyExistsError(absl::StrCat(directory, ": found files, want an empty directory"));
  }
  const std::filesystem::space_info space = std::filesystem::space(directory, error);
  if (!error && space.available < static_cast<uintmax_t>(bytes) + (uintmax_t{1} << 20)) {
    return absl::ResourceExhaustedError(absl::StrFormat("%s: %.1f GB are free, the model takes %.1f GB",
                                                        directory, static_cast<double>(space.available) / 1e9,
                                                        static_cast<double>(bytes) / 1e9));
  }
  return absl::OkStatus();
}

absl::StatusOr<const Shape*> FindShape(const std::string& name) {
  for (const Shape& shape : kShapes) {
    if (name == shape.name) return &shape;
  }
  return absl::InvalidArgumentError(absl::StrCat("shape is \"", name, "\", want one of ", ModelShapeNames()));
}

}  // namespace

std::string ModelShapeNames() {
  std::string names;
  for (const Shape& shape : kShapes) absl::StrAppend(&names, names.empty() ? "" : ", ", shape.name);
  return names;
}

absl::Status MakeModel(const MakeModelOptions& options,
                       const std::function<bool(int64_t done, int64_t total)>& progress) {
  ALUDEL_ASSIGN_OR_RETURN(const Shape* const found, FindShape(options.shape));
  Shape shape = *found;
  if (options.layers > 0) shape.layers = options.layers;
  if (options.shard_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("shard size is ", options.shard_bytes, ", want a positive number of bytes"));
  }
  const std::vector<Planned> plan = PlanTensors(shape);
  int64_t total = 0;
  for (const Planned& tensor : plan) total += static_cast<int64_t>(tensor.spec.bytes);
  ALUDEL_RETURN_IF_ERROR(PrepareDirectory(options.out, total));
  auto remove_files = absl::MakeCleanup([&] {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(options.out, ignored)) {
      std::filesystem::remove(entry.path(), ignored);
    }
  });

  const std::vector<std::vector<Planned>> shards = CutShards(plan, options.shard_bytes);
  ShardWriter writer(options, total, progress);
  ordered_json index = {{"metadata", {{"total_size", total}}}, {"weight_map", ordered_json::object()}};
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file = shards.size() == 1
                                 ? std::string("model.safetensors")
                                 : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, shards.size());
    for (const Planned& tensor : shards[i]) index["weight_map"][tensor.spec.name] = file;
    ALUDEL_RETURN_IF_ERROR(writer.Write(file, shards[i]));
  }
  if (shards.size() > 1) {
    ALUDEL_RETURN_IF_ERROR(WriteJson(absl::StrCat(options.out, "/model.safetensors.index.json"), index));
  }
  if (!options.tokenizer.empty()) ALUDEL_RETURN_IF_ERROR(CopyTokenizer(options.tokenizer, options.out));
  ALUDEL_RETURN_IF_ERROR(WriteJson(absl::StrCat(options.out, "/config.json"), MakeConfig(shape)));
  std::move(remove_files).Cancel();
  return absl::OkStatus();
}

}  // namespace aludel
