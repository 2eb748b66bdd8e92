#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/model/weights/quantization_config.h"

namespace aludel {

enum class RopeScaling : uint8_t { kNone, kLinear, kDynamic, kLlama3, kYarn };

// rope_scaling / rope_parameters of a HuggingFace config; fields beyond `type` have meaning per type only.
struct RopeConfig {
  double theta = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;        // llama3
  double high_freq_factor = 4.0;       // llama3
  int64_t original_max_positions = 0;  // llama3, yarn, dynamic
  double beta_fast = 32.0;             // yarn
  double beta_slow = 1.0;              // yarn
  bool truncate = true;                // yarn; the two dimensions of the ramp become integers
  double attention_factor = 0.0;       // yarn; 0: derived from factor
};

// The decoder-only transformers this runtime can run, as one set of numbers: Llama 2/3, Mistral,
// Qwen2, Qwen3.
struct ModelConfig {
  std::string architecture;  // "LlamaForCausalLM", ...
  int layers = 0;
  int hidden = 0;
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int ffn = 0;
  int vocab = 0;
  int64_t max_positions = 0;
  double rms_norm_eps = 1e-5;
  RopeConfig rope;
  bool qkv_bias = false;  // Qwen2
  bool o_bias = false;    // some Llamas
  bool mlp_bias = false;  // likewise: gate, up and down
  bool qk_norm = false;   // Qwen3
  bool tied_embeddings = false;
  int64_t sliding_window = 0;  // 0: none
  QuantizationConfig quantization;
  std::vector<int> eos_ids;
  int bos_id = -1;  // -1: none

  int kv_dim() const { return kv_heads * head_dim; }
  int q_dim() const { return heads * head_dim; }

  // InvalidArgument names the field, what was found and what is supported.
  static absl::StatusOr<ModelConfig> FromJson(absl::string_view json, absl::string_view origin);
  // Reads DIR/config.json and, where present, eos ids of DIR/generation_config.json and the quantization of
  // DIR/hf_quant_config.json (config.json's counts before it).
  static absl::StatusOr<ModelConfig> Load(const std::string& directory);
};

// Inverse frequencies [head_dim / 2] after scaling, and YaRN's attention factor (1 otherwise). `dynamic`
// scaling depends on the sequence length: `length` fixes it, for all sequences of a model (Transformer).
struct RopeFrequencies {
  std::vector<float> inverse_frequency;
  float attention_factor = 1.0f;
};
RopeFrequencies MakeRopeFrequencies(const ModelConfig& config, int64_t length);

}  // namespace aludel
