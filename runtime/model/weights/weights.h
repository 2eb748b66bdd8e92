#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "runtime/model/model_config.h"
#include "runtime/model/transformer_options.h"
#include "runtime/model/weights/weight_stream.h"

namespace aludel {

struct LayerWeights {
  Buffer input_norm;                 // f32 [hidden]
  std::unique_ptr<PackedMatrix> q;   // [q_dim, hidden]
  std::unique_ptr<PackedMatrix> kv;  // [2 kv_dim, hidden]: K above V; also for states that arrived as codes
  Buffer qkv_bias;                   // f32 [q_dim + 2 kv_dim], or empty, like all biases
  Buffer q_norm, k_norm;             // f32 [head_dim], or empty
  std::unique_ptr<PackedMatrix> o;   // [hidden, q_dim]
  Buffer o_bias;                     // f32 [hidden]
  Buffer post_norm;                  // f32 [hidden]
  std::unique_ptr<PackedMatrix> gate_up;  // [2 ffn, hidden]
  Buffer gate_up_bias;                    // f32 [2 ffn]
  std::unique_ptr<PackedMatrix> down;     // [hidden, ffn]
  Buffer down_bias;                       // f32 [hidden]
};

// A checkpoint on its device, every tensor checked against the config before any of it is read.
struct Weights {
  std::string hash;         // of the model, see weight_stream.h
  bool past_cache = false;  // see StreamedFiles
  int kept_fp8 = 0;         // matrices, and stacks of them, that no format was asked of and that stay FP8
  int dequantized_fp8 = 0;  // those that would, but for scales by block or an adapter
  std::unique_ptr<PackedMatrix> embedding;  // [vocab, hidden]
  std::vector<LayerWeights> layers;
  Buffer final_norm;                       // f32 [hidden]
  std::unique_ptr<PackedMatrix> own_head;  // [vocab, hidden], or empty: the embedding is the head

  const PackedMatrix& head() const { return own_head == nullptr ? *embedding : *own_head; }

  // The embedding is kept as `compute`, matrices that are multiplied in `format`: a tied one is kept once
  // where these are the same. Without a format they are kept as `compute`, too, but for those that the checkpoint
  // stores in FP8 with a scale for each row or for all, on a device that keeps FP8, where `compute` is bf16 and the
  // checkpoint is made for inputs in FP8. Errors name the file, the tensor, what was found and what the config
  // makes us expect.
  static absl::StatusOr<std::unique_ptr<Weights>> Load(Device* device, const ModelFiles& files,
                                                       const ModelConfig& config, DType compute,
                                                       std::optional<WeightFormat> format, Stream stream,
                                                       const StreamOptions& options,
                                                       const LoadProgress& progress);
};

// The check that Load makes first, alone: every tensor that the config wants is there, in a shape and form
// that can be read.
absl::Status CheckWeights(const ModelFiles& files, const ModelConfig& config);

// Numbers that the config's matrices and vectors hold, tied ones once.
int64_t CountParameters(const ModelConfig& config);
// Bytes that Load's result keeps on the device.
int64_t LoadedBytes(const ModelConfig& config, DType compute, WeightFormat format);

}  // namespace aludel
