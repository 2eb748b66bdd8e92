#include "runtime/model/weights.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/model/safetensors.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// IEEE-754 binary16 to binary32, exactly; clang 14 has no _Float16 for plain x86-64.
float FromHalf(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude < 0x0400u) {  // zero and subnormal
    const float value = static_cast<float>(magnitude) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  const uint32_t exponent_shift = magnitude >= 0x7c00u ? 224u << 23 : 112u << 23;  // infinity and NaN stay so
  return __builtin_bit_cast(float, sign | ((magnitude << 13) + exponent_shift));
}

// Reads tensors of one checkpoint into host staging, converted to what the device wants.
class Loader {
 public:
  Loader(Device* device, const ModelFiles& files, std::string directory, DType compute, Stream stream)
      : device_(device),
        files_(files),
        directory_(std::move(directory)),
        compute_(compute),
        stream_(stream) {}

  // A vector as f32 on the device.
  absl::StatusOr<Buffer> Vector(const std::string& name, int64_t size) {
    std::vector<float> host;
    ALUDEL_RETURN_IF_ERROR(Append(name, {size}, &host));
    return Upload(host);
  }

  // Several vectors end to end.
  absl::StatusOr<Buffer> Vectors(const std::vector<std::pair<std::string, int64_t>>& parts) {
    std::vector<float> host;
    for (const auto& [name, size] : parts) ALUDEL_RETURN_IF_ERROR(Append(name, {size}, &host));
    return Upload(host);
  }

  // Several matrices with the same number of columns, stacked by rows and packed as one.
  absl::StatusOr<std::unique_ptr<PackedMatrix>> Matrices(
      const std::vector<std::pair<std::string, int64_t>>& parts, int64_t cols) {
    std::vector<float> host;
    int64_t rows = 0;
    for (const auto& [name, part_rows] : parts) {
      ALUDEL_RETURN_IF_ERROR(Append(name, {part_rows, cols}, &host));
      rows += part_rows;
    }
    auto packed = device_->ops().Pack(TensorView::Of(host.data(), rows, cols), compute_);
    if (!packed.ok()) {
      return absl::Status(packed.status().code(), absl::StrCat(directory_, ": ", parts.front().first, ": ",
                                                               std::string(packed.status().message())));
    }
    return packed;
  }

  absl::Status Embedding(const std::string& name, int64_t rows, int64_t cols, Weights* weights) {
    std::vector<float> host;
    ALUDEL_RETURN_IF_ERROR(Append(name, {rows, cols}, &host));
    std::vector<Bf16> narrow;
    const void* bytes = host.data();
    if (compute_ == DType::kBf16) {
      narrow.resize(host.size());
      std::transform(host.begin(), host.end(), narrow.begin(), [](float value) { return ToBf16(value); });
      bytes = narrow.data();
    }
    const size_t size = host.size() * SizeOf(compute_);
    ALUDEL_ASSIGN_OR_RETURN(weights->embedding_memory, device_->Allocate(size));
    device_->CopyToDevice(weights->embedding_memory.data(), bytes, size, stream_);
    weights->embedding = {weights->embedding_memory.data(), compute_, rows, cols, cols};
    return device_->Synchronize(stream_);
  }

 private:
  absl::Status Append(const std::string& name, const std::vector<int64_t>& shape, std::vector<float>* host) {
    ALUDEL_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, files_.Find(name));
    if (entry->shape != shape) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: tensor %s has shape [%s], config.json wants [%s]", directory_, name,
                          absl::StrJoin(entry->shape, ", "), absl::StrJoin(shape, ", ")));
    }
    const size_t begin = host->size();
    const size_t count = entry->elements();
    host->resize(begin + count);
    float* out = host->data() + begin;
    if (entry->dtype == "F32") {
      std::memcpy(out, entry->data.data(), count * sizeof(float));
    } else if (entry->dtype == "BF16") {
      for (size_t i = 0; i < count; ++i) {
        Bf16 value;
        std::memcpy(&value, entry->data.data() + i * sizeof(value), sizeof(value));
        out[i] = ToFloat(value);
      }
    } else if (entry->dtype == "F16") {
      for (size_t i = 0; i < count; ++i) {
        uint16_t bits;
        std::memcpy(&bits, entry->data.data() + i * sizeof(bits), sizeof(bits));
        out[i] = FromHalf(bits);
      }
    } else {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: tensor %s has dtype %s, supported are BF16, F16, F32", directory_, name, entry->dtype));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Buffer> Upload(const std::vector<float>& host) {
    const size_t bytes = host.size() * sizeof(float);
    ALUDEL_ASSIGN_OR_RETURN(Buffer buffer, device_->Allocate(bytes));
    device_->CopyToDevice(buffer.data(), host.data(), bytes, stream_);
    ALUDEL_RETURN_IF_ERROR(device_->Synchronize(stream_));
    return buffer;
  }

  Device* device_;
  const ModelFiles& files_;
  std::string directory_;
  DType compute_;
  Stream stream_;
};

absl::Status LoadLayer(Loader& loader, const ModelConfig& config, int index, LayerWeights* layer) {
  const std::string p = absl::StrCat("model.layers.", index, ".");
  const std::string attention = p + "self_attn.";
  const int64_t q = config.q_dim();
  const int64_t kv = config.kv_dim();
  ALUDEL_ASSIGN_OR_RETURN(layer->input_norm, loader.Vector(p + "input_layernorm.weight", config.hidden));
  ALUDEL_ASSIGN_OR_RETURN(layer->qkv, loader.Matrices({{attention + "q_proj.weight", q},
                                                       {attention + "k_proj.weight", kv},
                                                       {attention + "v_proj.weight", kv}},
                                                      config.hidden));
  ALUDEL_ASSIGN_OR_RETURN(
      layer->kv,
      loader.Matrices({{attention + "k_proj.weight", kv}, {attention + "v_proj.weight", kv}}, config.hidden));
  if (config.qkv_bias) {
    ALUDEL_ASSIGN_OR_RETURN(layer->qkv_bias, loader.Vectors({{attention + "q_proj.bias", q},
                                                             {attention + "k_proj.bias", kv},
                                                             {attention + "v_proj.bias", kv}}));
  }
  if (config.qk_norm) {
    ALUDEL_ASSIGN_OR_RETURN(layer->q_norm, loader.Vector(attention + "q_norm.weight", config.head_dim));
    ALUDEL_ASSIGN_OR_RETURN(layer->k_norm, loader.Vector(attention + "k_norm.weight", config.head_dim));
  }
  ALUDEL_ASSIGN_OR_RETURN(layer->o, loader.Matrices({{attention + "o_proj.weight", config.hidden}}, q));
  ALUDEL_ASSIGN_OR_RETURN(layer->post_norm,
                          loader.Vector(p + "post_attention_layernorm.weight", config.hidden));
  ALUDEL_ASSIGN_OR_RETURN(layer->gate_up, loader.Matrices({{p + "mlp.gate_proj.weight", config.ffn},
                                                           {p + "mlp.up_proj.weight", config.ffn}},
                                                          config.hidden));
  ALUDEL_ASSIGN_OR_RETURN(layer->down,
                          loader.Matrices({{p + "mlp.down_proj.weight", config.hidden}}, config.ffn));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Weights>> Weights::Load(Device* device, const std::string& directory,
                                                       const ModelConfig& config, DType compute,
                                                       Stream stream) {
  ALUDEL_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::Open(directory));
  Loader loader(device, files, directory, compute, stream);
  auto weights = std::make_unique<Weights>();
  const std::string embedding = "model.embed_tokens.weight";
  ALUDEL_RETURN_IF_ERROR(loader.Embedding(embedding, config.vocab, config.hidden, weights.get()));
  weights->layers.resize(config.layers);
  for (int i = 0; i < config.layers; ++i) {
    ALUDEL_RETURN_IF_ERROR(LoadLayer(loader, config, i, &weights->layers[i]));
  }
  ALUDEL_ASSIGN_OR_RETURN(weights->final_norm, loader.Vector("model.norm.weight", config.hidden));
  const std::string head = config.tied_embeddings ? embedding : "lm_head.weight";
  ALUDEL_ASSIGN_OR_RETURN(weights->head, loader.Matrices({{head, config.vocab}}, config.hidden));
  return weights;
}

}  // namespace aludel
