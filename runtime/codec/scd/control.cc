#include "runtime/codec/scd/control.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "runtime/codec/scd/projector.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

struct PackedControl {
  std::unique_ptr<PackedMatrix> kv;
  Buffer bias;
};

class ControlDecoder : public KvDecoder {
 public:
  ControlDecoder(const Transformer& model, int recomputed_layers, const std::vector<PackedControl>& layers,
                 Projector& projector, Buffer h, Buffer kv)
      : model_(model),
        recomputed_layers_(recomputed_layers),
        layers_(layers),
        projector_(projector),
        h_(std::move(h)),
        kv_(std::move(kv)) {}

  absl::Status Begin(const KvTarget& target) override {
    ALUDEL_CHECK(target.model == &model_ && target.begin == 0);  // it attends to every page before
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
    item.adapter = target.adapter;
    const TensorView h{h_.data(), model_.options().compute, rows, config.hidden, config.hidden};
    ALUDEL_RETURN_IF_ERROR(
        target.model->ForwardShallow(absl::MakeSpan(&item, 1), recomputed_layers_, *target.pool, h));
    for (int layer = recomputed_layers_ + 1; layer < config.layers; ++layer) {
      const PackedControl& packed = layers_[layer];
      const TensorView kv = projector_.Multiply(h, *packed.kv, packed.bias.as<float>(),
                                                /*accumulate=*/false, kv_.as<float>());
      target.model->WriteKv(layer, begin, target.blocks, kv.Cols(0, config.kv_dim()),
                            kv.Cols(config.kv_dim(), config.kv_dim()), *target.pool);
    }
    return model_.device()->Synchronize(model_.stream());
  }

  const Transformer& model_;
  int recomputed_layers_;
  const std::vector<PackedControl>& layers_;
  Projector& projector_;
  Buffer h_;   // the model's compute type [max_rows, hidden]
  Buffer kv_;  // f32 [PaddedRows(max_rows), 2 kv_dim]
};

CodecSpec ControlSpec(std::string name, int recomputed_layers, size_t layers) {
  return {.name = std::move(name),
          .kind = FrameKind::kScd,
          .shipped_layers = std::vector<bool>(layers, false),
          .recomputed_layers = recomputed_layers,
          .max_frame_bytes = [](int64_t) { return size_t{0}; }};
}

double FlopsPerToken(const ModelConfig& config, int recomputed_layers) {
  const double predicted = config.layers - 1 - recomputed_layers;
  // K and V of the layer behind the recomputed ones, and one map for every deeper layer.
  return (predicted + 1) * 2.0 * config.hidden * 2.0 * config.kv_dim();
}

class ControlDecoderFactory : public DecoderFactory {
 public:
  ControlDecoderFactory(std::string name, int recomputed_layers, std::vector<PackedControl> layers,
                        std::unique_ptr<Projector> projector, const Transformer& model)
      : DecoderFactory(ControlSpec(std::move(name), recomputed_layers, layers.size()),
                       FlopsPerToken(model.config(), recomputed_layers)),
        layers_(std::move(layers)),
        projector_(std::move(projector)),
        model_(model) {}

  absl::StatusOr<std::unique_ptr<KvDecoder>> NewDecoder() const override {
    const ModelConfig& config = model_.config();
    const int64_t max_rows = model_.options().max_rows;
    Device& device = *model_.device();
    ALUDEL_ASSIGN_OR_RETURN(Buffer h,
                            device.Allocate(max_rows * config.hidden * SizeOf(model_.options().compute)));
    ALUDEL_ASSIGN_OR_RETURN(Buffer kv,
                            device.Allocate(PaddedRows(max_rows) * 2 * config.kv_dim() * sizeof(float)));
    return std::make_unique<ControlDecoder>(model_, spec().recomputed_layers, layers_, *projector_,
                                            std::move(h), std::move(kv));
  }

 private:
  std::vector<PackedControl> layers_;
  std::unique_ptr<Projector> projector_;  // of all its decoders
  const Transformer& model_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DecoderFactory>> MakeControlDecoders(std::string name,
                                                                    const ControlWeights& weights,
                                                                    const Transformer& model) {
  std::vector<PackedControl> layers(weights.layers.size());
  for (size_t i = weights.recomputed_layers + 1; i < layers.size(); ++i) {
    ALUDEL_ASSIGN_OR_RETURN(layers[i].kv, PackFor(model, weights.layers[i].kv));
    ALUDEL_ASSIGN_OR_RETURN(layers[i].bias, UploadFor(model, weights.layers[i].bias));
  }
  ALUDEL_ASSIGN_OR_RETURN(auto projector, Projector::Create(model, model.config().hidden));
  return std::make_unique<ControlDecoderFactory>(std::move(name), weights.recomputed_layers,
                                                 std::move(layers), std::move(projector), model);
}

}  // namespace aludel
