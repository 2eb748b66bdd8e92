#include "runtime/model/adapters/lora_weights.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/model/adapters/lora_adapter.h"
#include "runtime/model/weights/stored_matrix.h"
#include "runtime/model/weights/weight_stream.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// A module of a stack: rows [.., + outputs) of the matrix that it is a part of.
struct Module {
  std::string name;
  int64_t outputs = 0;
};

// Finds an adapter's updates of a base's stacks, and packs them where there is a device.
class Reader {
 public:
  Reader(const LoraAdapter& adapter, Device* device, DType compute)
      : adapter_(adapter), device_(device), compute_(compute) {}

  // The updates of these modules, which share their inputs; `packed` stays null where there are none.
  absl::Status Read(const std::vector<Module>& modules, int64_t inputs,
                    std::unique_ptr<PackedLowRank>* packed);

  const std::set<const SafetensorsEntry*>& used() const { return used_; }
  size_t bytes() const { return bytes_; }

 private:
  const LoraAdapter& adapter_;
  Device* const device_;
  const DType compute_;
  std::set<const SafetensorsEntry*> used_;
  size_t bytes_ = 0;
};

absl::Status Reader::Read(const std::vector<Module>& modules, int64_t inputs,
                          std::unique_ptr<PackedLowRank>* packed) {
  std::vector<LowRankPart> parts;
  std::vector<std::vector<float>> numbers;
  int64_t outputs = 0;
  for (const Module& module : modules) {
    const int64_t out_begin = std::exchange(outputs, outputs + module.outputs);
    ALUDEL_ASSIGN_OR_RETURN(const auto update, adapter_.Find(module.name, module.outputs, inputs));
    if (!update.has_value()) continue;
    used_.insert({update->a, update->b});
    if (device_ == nullptr) continue;
    const auto view = [&](const SafetensorsEntry& entry) {
      std::vector<float>& to = numbers.emplace_back(static_cast<size_t>(entry.elements()));
      ReadPlain(entry, 0, entry.elements(), to.data());
      return TensorView::Of(to.data(), entry.shape[0], entry.shape[1]);
    };
    parts.push_back({view(*update->a), view(*update->b), update->scale, out_begin});
  }
  if (parts.empty()) return absl::OkStatus();
  ALUDEL_ASSIGN_OR_RETURN(*packed, device_->ops().PackLowRank(parts, outputs, inputs, compute_));
  bytes_ += (*packed)->bytes();
  return absl::OkStatus();
}

absl::Status ReadLayer(const ModelConfig& config, int index, Reader& reader, LayerUpdates* layer) {
  const std::string attention = absl::StrCat("model.layers.", index, ".self_attn.");
  const std::string mlp = absl::StrCat("model.layers.", index, ".mlp.");
  const int64_t hidden = config.hidden;
  const int64_t kv = config.kv_dim();
  ALUDEL_RETURN_IF_ERROR(reader.Read({{attention + "q_proj", config.q_dim()}}, hidden, &layer->q));
  ALUDEL_RETURN_IF_ERROR(
      reader.Read({{attention + "k_proj", kv}, {attention + "v_proj", kv}}, hidden, &layer->kv));
  ALUDEL_RETURN_IF_ERROR(reader.Read({{attention + "o_proj", hidden}}, config.q_dim(), &layer->o));
  ALUDEL_RETURN_IF_ERROR(
      reader.Read({{mlp + "gate_proj", config.ffn}, {mlp + "up_proj", config.ffn}}, hidden, &layer->gate_up));
  return reader.Read({{mlp + "down_proj", hidden}}, config.ffn, &layer->down);
}

absl::Status ReadAll(const LoraAdapter& adapter, const LoraWeights::Base& base, Reader& reader,
                     std::vector<LayerUpdates>* layers, std::unique_ptr<PackedLowRank>* head) {
  const ModelConfig& config = base.config;
  layers->resize(config.layers);
  for (int i = 0; i < config.layers; ++i) {
    ALUDEL_RETURN_IF_ERROR(ReadLayer(config, i, reader, &(*layers)[i]));
  }
  // An error where it is a target.
  std::unique_ptr<PackedLowRank> none;
  ALUDEL_RETURN_IF_ERROR(reader.Read({{std::string(kEmbeddingModule), config.vocab}}, config.hidden, &none));
  if (!config.tied_embeddings) {
    ALUDEL_RETURN_IF_ERROR(reader.Read({{std::string(kHeadModule), config.vocab}}, config.hidden, head));
  }
  return adapter.CheckStrays(reader.used(), base.directory);
}

}  // namespace

absl::StatusOr<std::unique_ptr<LoraWeights>> LoraWeights::Load(Device* device, const std::string& directory,
                                                               const Base& base) {
  ALUDEL_ASSIGN_OR_RETURN(const auto file, LoraAdapter::OpenFile(directory));
  ALUDEL_ASSIGN_OR_RETURN(const auto adapter, LoraAdapter::Open(directory, file.get()));
  auto weights = std::unique_ptr<LoraWeights>(new LoraWeights);
  Reader reader(*adapter, device, base.compute);
  ALUDEL_RETURN_IF_ERROR(ReadAll(*adapter, base, reader, &weights->layers_, &weights->head_));
  weights->bytes_ = reader.bytes();
  weights->hash_ = HashAdapted(*adapter, base.hash);
  return weights;
}

bool LoraWeights::updates_cache() const {
  return std::any_of(layers_.begin(), layers_.end(),
                     [](const LayerUpdates& layer) { return layer.kv != nullptr; });
}

absl::Status LoraWeights::Check(const std::string& directory, const Base& base) {
  ALUDEL_ASSIGN_OR_RETURN(const auto file, LoraAdapter::OpenFile(directory));
  ALUDEL_ASSIGN_OR_RETURN(const auto adapter, LoraAdapter::Open(directory, file.get()));
  Reader reader(*adapter, nullptr, base.compute);
  std::vector<LayerUpdates> layers;
  std::unique_ptr<PackedLowRank> head;
  return ReadAll(*adapter, base, reader, &layers, &head);
}

}  // namespace aludel
