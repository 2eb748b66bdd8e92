#pragma once

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/tensor.h"
#include "nlohmann/json.hpp"

namespace aludel::cuda::fake {

// Of a model whose steps are counted and not run (CountOnly).
struct Shape {
  const char* name;
  int64_t layers, hidden, ffn, heads, kv_heads, head_dim, vocab;

  int64_t q_dim() const { return heads * head_dim; }
  int64_t kv_dim() const { return kv_heads * head_dim; }
};

// A checkpoint of zeros, tied, of a few layers, which takes no room on disk.
inline void WriteZeros(const Shape& shape, const std::string& directory) {
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

}  // namespace aludel::cuda::fake
