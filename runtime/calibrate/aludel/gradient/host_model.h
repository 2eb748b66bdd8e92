#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/calibrate/aludel/gradient/model_matrix.h"
#include "runtime/model/model_config.h"
#include "runtime/model/model_path.h"

namespace aludel {

struct HostLayer {
  std::vector<float> input_norm;      // [hidden]
  ModelMatrix qkv;                    // [q_dim + 2 kv_dim, hidden]
  std::vector<float> qkv_bias;        // [q_dim + 2 kv_dim], or empty, like all biases
  std::vector<float> q_norm, k_norm;  // [head_dim], or empty
  ModelMatrix o;                      // [hidden, q_dim]
  std::vector<float> o_bias;          // [hidden]
  std::vector<float> post_norm;       // [hidden]
  ModelMatrix gate_up;                // [2 ffn, hidden]
  std::vector<float> gate_up_bias;    // [2 ffn]
  ModelMatrix down;                   // [hidden, ffn]
  std::vector<float> down_bias;       // [hidden]
};

// A checkpoint in host memory as plain rows, for passes that the serving runtime, whose matrices are packed for
// one direction, cannot run. Takes 4 bytes a parameter, 2 where its matrices are bf16. Immutable.
struct HostModel {
  ModelConfig config;
  ModelMatrix embedding;  // [vocab, hidden]
  std::vector<HostLayer> layers;
  std::vector<float> final_norm;  // [hidden]
  ModelMatrix untied_head;        // [vocab, hidden], empty where the embedding is the head

  const ModelMatrix& head() const { return config.tied_embeddings ? embedding : untied_head; }

  // Reads a HuggingFace model directory and its adapter. Errors name the directory, the tensor, what was found
  // and what was expected. `matrices`: kF32 or kBf16.
  static absl::StatusOr<std::unique_ptr<HostModel>> Load(const ModelPath& path, DType matrices);
};

}  // namespace aludel
