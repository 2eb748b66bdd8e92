#include "runtime/calibrate/aludel/gradient/host_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/model/weights/safetensors.h"
#include "runtime/model/weights/stored_matrix.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

constexpr int64_t kPiece = 512;  // rows read at a time

// Reads tensors of one checkpoint, their shapes checked.
class Reader {
 public:
  Reader(const ModelFiles& files, const ModelConfig& config, DType matrices)
      : files_(files), config_(config), matrices_(matrices) {}

  absl::Status Append(const std::string& name, int64_t size, std::vector<float>* out) {
    ALUDEL_ASSIGN_OR_RETURN(const SafetensorsEntry* entry, FindShaped(files_, name, {size}));
    if (!IsPlain(*entry)) {
      return absl::InvalidArgumentError(absl::StrCat(files_.directory(), ": tensor ", name, " has dtype ",
                                                     entry->dtype, ", want BF16, F16 or F32"));
    }
    const size_t begin = out->size();
    out->resize(begin + static_cast<size_t>(size));
    ReadPlain(*entry, 0, size, out->data() + begin);
    return absl::OkStatus();
  }

  // Matrices of modules with the same number of columns, one below the other.
  absl::Status Stack(const std::vector<std::pair<std::string, int64_t>>& modules, int64_t cols,
                     ModelMatrix* out) {
    *out = ModelMatrix(matrices_);
    int64_t total = 0;
    for (const auto& [module, rows] : modules) total += rows;
    if (!out->Reserve(total, cols)) {
      return absl::ResourceExhaustedError(absl::StrCat(files_.directory(), ": no memory for a matrix of ",
                                                       total, " x ", cols, " as ", Name(matrices_)));
    }
    std::vector<float> values(kPiece * cols);
    for (const auto& [module, rows] : modules) {
      ALUDEL_ASSIGN_OR_RETURN(const auto matrix,
                              StoredMatrix::Open(files_, config_.quantization, module, rows, cols));
      for (int64_t begin = 0; begin < rows; begin += kPiece) {
        const int64_t count = std::min(kPiece, rows - begin);
        matrix->Read(begin, begin + count, values.data());
        out->Append(values.data(), count);
      }
    }
    return absl::OkStatus();
  }

 private:
  const ModelFiles& files_;
  const ModelConfig& config_;
  const DType matrices_;
};

absl::Status ReadLayer(Reader& reader, const ModelConfig& config, int index, HostLayer* layer) {
  const std::string p = absl::StrCat("model.layers.", index, ".");
  const std::string attention = p + "self_attn.";
  const int64_t q = config.q_dim();
  const int64_t kv = config.kv_dim();
  ALUDEL_RETURN_IF_ERROR(reader.Append(p + "input_layernorm.weight", config.hidden, &layer->input_norm));
  ALUDEL_RETURN_IF_ERROR(
      reader.Stack({{attention + "q_proj", q}, {attention + "k_proj", kv}, {attention + "v_proj", kv}},
                   config.hidden, &layer->qkv));
  if (config.qkv_bias) {
    ALUDEL_RETURN_IF_ERROR(reader.Append(attention + "q_proj.bias", q, &layer->qkv_bias));
    ALUDEL_RETURN_IF_ERROR(reader.Append(attention + "k_proj.bias", kv, &layer->qkv_bias));
    ALUDEL_RETURN_IF_ERROR(reader.Append(attention + "v_proj.bias", kv, &layer->qkv_bias));
  }
  if (config.qk_norm) {
    ALUDEL_RETURN_IF_ERROR(reader.Append(attention + "q_norm.weight", config.head_dim, &layer->q_norm));
    ALUDEL_RETURN_IF_ERROR(reader.Append(attention + "k_norm.weight", config.head_dim, &layer->k_norm));
  }
  ALUDEL_RETURN_IF_ERROR(reader.Stack({{attention + "o_proj", config.hidden}}, q, &layer->o));
  if (config.o_bias) {
    ALUDEL_RETURN_IF_ERROR(reader.Append(attention + "o_proj.bias", config.hidden, &layer->o_bias));
  }
  ALUDEL_RETURN_IF_ERROR(
      reader.Append(p + "post_attention_layernorm.weight", config.hidden, &layer->post_norm));
  ALUDEL_RETURN_IF_ERROR(reader.Stack({{p + "mlp.gate_proj", config.ffn}, {p + "mlp.up_proj", config.ffn}},
                                      config.hidden, &layer->gate_up));
  if (config.mlp_bias) {
    ALUDEL_RETURN_IF_ERROR(reader.Append(p + "mlp.gate_proj.bias", config.ffn, &layer->gate_up_bias));
    ALUDEL_RETURN_IF_ERROR(reader.Append(p + "mlp.up_proj.bias", config.ffn, &layer->gate_up_bias));
    ALUDEL_RETURN_IF_ERROR(reader.Append(p + "mlp.down_proj.bias", config.hidden, &layer->down_bias));
  }
  return reader.Stack({{p + "mlp.down_proj", config.hidden}}, config.ffn, &layer->down);
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostModel>> HostModel::Load(const ModelPath& path, DType matrices) {
  auto model = std::make_unique<HostModel>();
  ALUDEL_ASSIGN_OR_RETURN(model->config, ModelConfig::Load(path.base));
  const ModelConfig& config = model->config;
  ALUDEL_ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::Open(path));
  Reader reader(files, config, matrices);
  ALUDEL_RETURN_IF_ERROR(
      reader.Stack({{"model.embed_tokens", config.vocab}}, config.hidden, &model->embedding));
  model->layers.resize(config.layers);
  for (int i = 0; i < config.layers; ++i) {
    ALUDEL_RETURN_IF_ERROR(ReadLayer(reader, config, i, &model->layers[i]));
  }
  ALUDEL_RETURN_IF_ERROR(reader.Append("model.norm.weight", config.hidden, &model->final_norm));
  if (!config.tied_embeddings) {
    ALUDEL_RETURN_IF_ERROR(reader.Stack({{"lm_head", config.vocab}}, config.hidden, &model->untied_head));
  }
  return model;
}

}  // namespace aludel
