#include "runtime/bench/make_adapter.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/tensor.h"
#include "nlohmann/json.hpp"
#include "runtime/model/model_config.h"
#include "runtime/model/weights/safetensors.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// Tensors under PEFT's names, and their numbers.
class Tensors {
 public:
  explicit Tensors(uint64_t seed) : random_(seed) {}

  void Add(const std::string& name, int64_t rows, int64_t cols, double deviation) {
    std::uniform_real_distribution<float> uniform(-1.0f, 1.0f);
    const auto scale = static_cast<float>(deviation * std::sqrt(3.0));
    std::vector<Bf16> numbers(static_cast<size_t>(rows * cols));
    for (Bf16& number : numbers) number = ToBf16(scale * uniform(random_));
    tensors_.push_back({name, "BF16", {rows, cols}, {}});
    numbers_.push_back(std::move(numbers));
  }

  absl::Status Write(const std::string& path) {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      tensors_[i].data = {reinterpret_cast<const uint8_t*>(numbers_[i].data()),
                          numbers_[i].size() * sizeof(Bf16)};
    }
    return WriteSafetensors(path, tensors_, {});
  }

 private:
  std::mt19937_64 random_;
  std::vector<SafetensorsTensor> tensors_;
  std::vector<std::vector<Bf16>> numbers_;
};

}  // namespace

absl::Status MakeAdapter(const MakeAdapterOptions& options) {
  if (options.rank < 1) {
    return absl::InvalidArgumentError(absl::StrCat("rank is ", options.rank, ", want a positive number"));
  }
  ALUDEL_ASSIGN_OR_RETURN(const ModelConfig config, ModelConfig::Load(options.base));
  std::error_code error;
  std::filesystem::create_directories(options.out, error);
  if (error || !std::filesystem::is_empty(options.out, error)) {
    return absl::FailedPreconditionError(
        absl::StrCat(options.out, ": want a directory that is empty or new"));
  }
  Tensors tensors(options.seed);
  for (int i = 0; i < config.layers; ++i) {
    const std::string layer = absl::StrCat("base_model.model.model.layers.", i, ".");
    const auto module = [&](const char* name, int64_t outputs, int64_t inputs) {
      tensors.Add(absl::StrCat(layer, name, ".lora_A.weight"), options.rank, inputs,
                  1.0 / std::sqrt(static_cast<double>(inputs)));
      tensors.Add(absl::StrCat(layer, name, ".lora_B.weight"), outputs, options.rank,
                  options.strength / std::sqrt(static_cast<double>(options.rank)));
    };
    module("self_attn.q_proj", config.q_dim(), config.hidden);
    if (!options.reads_only) {
      module("self_attn.k_proj", config.kv_dim(), config.hidden);
      module("self_attn.v_proj", config.kv_dim(), config.hidden);
    }
    module("self_attn.o_proj", config.hidden, config.q_dim());
    module("mlp.gate_proj", config.ffn, config.hidden);
    module("mlp.up_proj", config.ffn, config.hidden);
    module("mlp.down_proj", config.hidden, config.ffn);
  }
  ALUDEL_RETURN_IF_ERROR(tensors.Write(options.out + "/adapter_model.safetensors"));
  nlohmann::ordered_json adapter = {{"peft_type", "LORA"},
                                    {"task_type", "CAUSAL_LM"},
                                    {"r", options.rank},
                                    {"lora_alpha", options.rank},
                                    {"target_modules", "all-linear"}};
  if (options.reads_only) adapter["exclude_modules"] = {"k_proj", "v_proj"};
  std::ofstream file(options.out + "/adapter_config.json");
  file << adapter.dump(2) << "\n";
  file.close();
  if (!file) return absl::DataLossError(absl::StrCat(options.out, ": cannot write adapter_config.json"));
  return absl::OkStatus();
}

}  // namespace aludel
