#include "runtime/codec/transform/host_model.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/tensor.h"
#include "runtime/model/safetensors.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// IEEE-754 binary16 to binary32, exactly.
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

template <typename Stored, typename Widen>
void WidenTo(const SafetensorsEntry& entry, Widen widen, float* out) {
  const int64_t count = entry.elements();
  for (int64_t i = 0; i < count; ++i) {
    Stored stored;
    std::memcpy(&stored, entry.data.data() + i * sizeof(stored), sizeof(stored));
    out[i] = widen(stored);
  }
}

// Reads tensors of one checkpoint, their shapes checked.
class Reader {
 public:
  Reader(const ModelFiles& files, const std::string& directory) : files_(files), directory_(directory) {}

  absl::Status Append(const std::string& name, const std::vector<int64_t>& shape, std::vector<float>* out) {
    ALUDEL_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, files_.Find(name));
    if (entry->shape != shape) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: tensor %s has shape [%s], config.json wants [%s]", directory_, name,
                          absl::StrJoin(entry->shape, ", "), absl::StrJoin(shape, ", ")));
    }
    const size_t begin = out->size();
    out->resize(begin + static_cast<size_t>(entry->elements()));
    float* to = out->data() + begin;
    if (entry->dtype == "F32") {
      WidenTo<float>(
          *entry, [](float value) { return value; }, to);
    } else if (entry->dtype == "BF16") {
      WidenTo<Bf16>(
          *entry, [](Bf16 value) { return ToFloat(value); }, to);
    } else if (entry->dtype == "F16") {
      WidenTo<uint16_t>(*entry, FromHalf, to);
    } else {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: tensor %s has dtype %s, gradients support BF16, F16, F32", directory_, name, entry->dtype));
    }
    return absl::OkStatus();
  }

  // Matrices with the same number of columns, one below the other.
  absl::Status Stack(const std::vector<std::pair<std::string, int64_t>>& parts, int64_t cols,
                     HostMatrix* out) {
    out->cols = cols;
    for (const auto& [name, rows] : parts) {
      ALUDEL_RETURN_IF_ERROR(Append(name, {rows, cols}, &out->values));
      out->rows += rows;
    }
    return absl::OkStatus();
  }

 private:
  const ModelFiles& files_;
  const std::string& directory_;
};

absl::Status ReadLayer(Reader& reader, const ModelConfig& config, int index, HostLayer* layer) {
  const std::string p = absl::StrCat("model.layers.", index, ".");
  const std::string attention = p + "self_attn.";
  const int64_t q = config.q_dim();
  const int64_t kv = config.kv_dim();
  ALUDEL_RETURN_IF_ERROR(reader.Append(p + "input_layernorm.weight", {config.hidden}, &layer->input_norm));
  ALUDEL_RETURN_IF_ERROR(reader.Stack({{attention + "q_proj.weight", q},
                                       {attention + "k_proj.weight", kv},
                                       {attention + "v_proj.weight", kv}},
                                      config.hidden, &layer->qkv));
  if (config.qkv_bias) {
    ALUDEL_RETURN_IF_ERROR(reader.Append(attention + "q_proj.bias", {q}, &layer->qkv_bias));
    ALUDEL_RETURN_IF_ERROR(reader.Append(attention + "k_proj.bias", {kv}, &layer->qkv_bias));
    ALUDEL_RETURN_IF_ERROR(reader.Append(attention + "v_proj.bias", {kv}, &layer->qkv_bias));
  }
  if (config.qk_norm) {
    ALUDEL_RETURN_IF_ERROR(reader.Append(attention + "q_norm.weight", {config.head_dim}, &layer->q_norm));
    ALUDEL_RETURN_IF_ERROR(reader.Append(attention + "k_norm.weight", {config.head_dim}, &layer->k_norm));
  }
  ALUDEL_RETURN_IF_ERROR(reader.Stack({{attention + "o_proj.weight", config.hidden}}, q, &layer->o));
  ALUDEL_RETURN_IF_ERROR(
      reader.Append(p + "post_attention_layernorm.weight", {config.hidden}, &layer->post_norm));
  ALUDEL_RETURN_IF_ERROR(
      reader.Stack({{p + "mlp.gate_proj.weight", config.ffn}, {p + "mlp.up_proj.weight", config.ffn}},
                   config.hidden, &layer->gate_up));
  return reader.Stack({{p + "mlp.down_proj.weight", config.hidden}}, config.ffn, &layer->down);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostModel>> HostModel::Load(const std::string& directory) {
  auto model = std::make_unique<HostModel>();
  ALUDEL_ASSIGN_OR_RETURN(model->config, ModelConfig::Load(directory));
  const ModelConfig& config = model->config;
  ALUDEL_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::Open(directory));
  Reader reader(files, directory);
  ALUDEL_RETURN_IF_ERROR(
      reader.Stack({{"model.embed_tokens.weight", config.vocab}}, config.hidden, &model->embedding));
  model->layers.resize(config.layers);
  for (int i = 0; i < config.layers; ++i) {
    ALUDEL_RETURN_IF_ERROR(ReadLayer(reader, config, i, &model->layers[i]));
  }
  ALUDEL_RETURN_IF_ERROR(reader.Append("model.norm.weight", {config.hidden}, &model->final_norm));
  if (!config.tied_embeddings) {
    ALUDEL_RETURN_IF_ERROR(
        reader.Stack({{"lm_head.weight", config.vocab}}, config.hidden, &model->untied_head));
  }
  return model;
}

}  // namespace aludel
