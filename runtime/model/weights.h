#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "runtime/model/model_config.h"

namespace aludel {

struct LayerWeights {
  Buffer input_norm;                  // f32 [hidden]
  std::unique_ptr<PackedMatrix> qkv;  // [q_dim + 2 kv_dim, hidden]: one pass over the input makes all three
  Buffer qkv_bias;                    // f32 [q_dim + 2 kv_dim], or empty
  Buffer q_norm, k_norm;              // f32 [head_dim], or empty
  std::unique_ptr<PackedMatrix> kv;   // [2 kv_dim, hidden]: K and V alone, for states that arrived as codes
  std::unique_ptr<PackedMatrix> o;    // [hidden, q_dim]
  Buffer post_norm;                   // f32 [hidden]
  std::unique_ptr<PackedMatrix> gate_up;  // [2 ffn, hidden]
  std::unique_ptr<PackedMatrix> down;     // [hidden, ffn]
};

// A checkpoint on its device, every tensor checked against the config before any of it is used.
struct Weights {
  Buffer embedding_memory;
  TensorView embedding;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  Buffer final_norm;                   // f32 [hidden]
  std::unique_ptr<PackedMatrix> head;  // [vocab, hidden]

  // Errors name the file, the tensor, what was found and what the config makes us expect.
  static absl::StatusOr<std::unique_ptr<Weights>> Load(Device* device, const std::string& directory,
                                                       const ModelConfig& config, DType compute,
                                                       Stream stream);
};

// SHA-256 over the model directory's config.json and weight files in name order, hex.
absl::StatusOr<std::string> HashModel(const std::string& directory);

}  // namespace aludel
