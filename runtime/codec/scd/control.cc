#include "runtime/codec/scd/control.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "runtime/codec/scd/projector.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

struct PackedLayer {
  std::unique_ptr<PackedMatrix> kv;
  Buffer bias;
};

class ControlDecoder : public KvDecoder {
 public:
  ControlDecoder(const Transformer& model, int recomputed_layers, const std::vector<PackedLayer>& layers,
                 Projector& projector, Buffer h, Buffer kv)
      : model_(model),
        recomputed_layers_(recomputed_layers),
        layers_(layers),
        projector_(projector),
        h_(std::move(h)),
        kv_(std::move(kv)) {}

  absl::Status Begin(const KvTarget& target) override {
    ALUDEL_CHECK(target.model == &model_);
    const int64_t max_rows = model_.options().max_rows;
    for (int64_t begin = target.begin; begin < target.tokens; begin += max_rows) {
      ALUDEL_RETURN_IF_ERROR(Fill(begin, std::min(max_rows, target.tokens - begin), target));
    }
    return absl::OkStatus();
  }

  absl::Status Apply(const FrameCoverage& coverage, absl::Span<const uint8_t>, const KvTarget&) override {
    return absl::DataLossError(
        absl::StrCat("frame of layer ", coverage.first_layer, ": a control receives no frames"));
  }

 private:
  absl::Status Fill(int64_t begin, int64_t rows, const KvTarget& target) {
    const ModelConfig& config = model_.config();
    BatchItem item;
    item.ids = target.prompt.subspan(begin, rows);
    item.position = begin;
    item.blocks = target.blocks;
    const TensorView h{h_.data(), model_.options().compute, rows, config.hidden, config.hidden};
    ALUDEL_RETURN_IF_ERROR(
        target.model->ForwardShallow(absl::MakeSpan(&item, 1), recomputed_layers_, *target.pool, h));
    for (int layer = recomputed_layers_ + 1; layer < config.layers; ++layer) {
      const PackedLayer& packed = layers_[layer];
      const TensorView kv = projector_.Multiply(h, *packed.kv, packed.bias.as<float>(),
                                                /*accumulate=*/false, kv_.as<float>());
      target.model->WriteKv(layer, begin, target.blocks, kv.Cols(0, config.kv_dim()),
                            kv.Cols(config.kv_dim(), config.kv_dim()), *target.pool);
    }
    return model_.device()->Synchronize(model_.stream());
  }

  const Transformer& model_;
  int recomputed_layers_;
  const std::vector<PackedLayer>& layers_;
  Projector& projector_;
  Buffer h_;   // the model's compute type [max_rows, hidden]
  Buffer kv_;  // f32 [PaddedRows(max_rows), 2 kv_dim]
};

class ControlCodec : public KvCodec {
 public:
  ControlCodec(std::string name, int recomputed_layers, std::vector<PackedLayer> layers,
               std::unique_ptr<Projector> projector, const Transformer& model)
      : name_(std::move(name)),
        recomputed_layers_(recomputed_layers),
        layers_(std::move(layers)),
        projector_(std::move(projector)),
        model_(model),
        shipped_(layers_.size(), false) {}

  const std::string& name() const override { return name_; }
  const std::string& artifact_hash() const override { return no_artifact_; }
  FrameKind kind() const override { return FrameKind::kScd; }
  const std::vector<bool>& shipped_layers() const override { return shipped_; }
  int recomputed_layers() const override { return recomputed_layers_; }
  int64_t recomputed_head_tokens() const override { return 0; }
  int64_t recomputed_tail_tokens() const override { return 0; }
  double flops_per_token() const override {
    const ModelConfig& config = model_.config();
    const double predicted = config.layers - 1 - recomputed_layers_;
    // K and V of the layer behind the recomputed ones, and one map for every deeper layer.
    return (predicted + 1) * 2.0 * config.hidden * 2.0 * config.kv_dim();
  }
  size_t MaxFrameBytes(int64_t) const override { return 0; }

  absl::StatusOr<std::unique_ptr<KvEncoder>> NewEncoder() const override {
    return absl::FailedPreconditionError(absl::StrCat("\"", name_, "\" is a control: it encodes nothing"));
  }

  absl::StatusOr<std::unique_ptr<KvDecoder>> NewDecoder() const override {
    const ModelConfig& config = model_.config();
    const int64_t max_rows = model_.options().max_rows;
    Device& device = *model_.device();
    ALUDEL_ASSIGN_OR_RETURN(Buffer h,
                            device.Allocate(max_rows * config.hidden * SizeOf(model_.options().compute)));
    ALUDEL_ASSIGN_OR_RETURN(Buffer kv,
                            device.Allocate(PaddedRows(max_rows) * 2 * config.kv_dim() * sizeof(float)));
    return std::make_unique<ControlDecoder>(model_, recomputed_layers_, layers_, *projector_, std::move(h),
                                            std::move(kv));
  }

 private:
  std::string name_;
  std::string no_artifact_;
  int recomputed_layers_;
  std::vector<PackedLayer> layers_;
  std::unique_ptr<Projector> projector_;  // of all its decoders
  const Transformer& model_;
  std::vector<bool> shipped_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<KvCodec>> MakeControlCodec(std::string name, const ControlWeights& weights,
                                                          const Transformer& model) {
  std::vector<PackedLayer> layers(weights.layers.size());
  for (size_t i = weights.recomputed_layers + 1; i < layers.size(); ++i) {
    ALUDEL_ASSIGN_OR_RETURN(layers[i].kv, PackFor(model, weights.layers[i].kv));
    ALUDEL_ASSIGN_OR_RETURN(layers[i].bias, UploadFor(model, weights.layers[i].bias));
  }
  ALUDEL_ASSIGN_OR_RETURN(auto projector, Projector::Create(model, model.config().hidden));
  return std::make_unique<ControlCodec>(std::move(name), weights.recomputed_layers, std::move(layers),
                                        std::move(projector), model);
}

}  // namespace aludel
