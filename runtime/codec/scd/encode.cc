#include "runtime/codec/scd/encode.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"
#include "runtime/codec/coverage.h"
#include "runtime/codec/outbox.h"
#include "runtime/codec/scd/projector.h"
#include "runtime/codec/scd/spec.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

struct EncoderLayer {
  ScdMode mode = ScdMode::kReuse;
  std::unique_ptr<PackedMatrix> k, v, h;

  int64_t rank() const {
    return mode == ScdMode::kPatch ? h->out_features() : k->out_features() + v->out_features();
  }
  double flops_per_token() const {
    return 2.0 * static_cast<double>(rank() * (mode == ScdMode::kPatch ? h : k)->in_features());
  }
};

int64_t MaxRank(const std::vector<EncoderLayer>& layers) {
  int64_t rank = 0;
  for (const EncoderLayer& layer : layers) rank = std::max(rank, layer.rank());
  return rank;
}

// What a codec's encoders compute in, one call after the other.
struct EncoderMemory {
  Buffer codes;  // f32 [PaddedRows(max_rows), max rank]
  std::unique_ptr<Projector> projector;
};

absl::StatusOr<EncoderMemory> MakeEncoderMemory(const Transformer& model,
                                                const std::vector<EncoderLayer>& layers) {
  const ModelConfig& config = model.config();
  const int64_t floats = PaddedRows(model.options().max_rows) * MaxRank(layers);
  EncoderMemory work;
  ALUDEL_ASSIGN_OR_RETURN(work.codes, model.device()->Allocate(floats * sizeof(float)));
  ALUDEL_ASSIGN_OR_RETURN(work.projector, Projector::Create(model, std::max(config.hidden, config.kv_dim())));
  return work;
}

class ScdEncoder : public KvEncoder {
 public:
  ScdEncoder(const Transformer& model, const std::vector<EncoderLayer>& layers, const EncoderMemory& work,
             std::unique_ptr<FrameOutbox> outbox)
      : model_(model), layers_(layers), work_(work), outbox_(std::move(outbox)) {}

  absl::Status Encode(const LayerSlice& slice, FrameSink& sink) override {
    ALUDEL_CHECK(slice.layer >= 0 && slice.layer < static_cast<int>(layers_.size()));
    const EncoderLayer& layer = layers_[slice.layer];
    Bf16* const codes = reinterpret_cast<Bf16*>(outbox_->Next());
    if (layer.mode == ScdMode::kPatch) {
      MakeCode(slice.h, *layer.h, codes);
    } else {
      MakeCode(slice.v, *layer.v, MakeCode(slice.k, *layer.k, codes));
    }
    const size_t bytes = static_cast<size_t>(slice.tokens() * layer.rank()) * sizeof(Bf16);
    const bool last = slice.layer + 1 == static_cast<int>(layers_.size());
    return outbox_->Add(SliceCoverage(slice), bytes, last, sink);
  }

 private:
  // Writes bf16(x w^T) to `to`; returns what comes behind it.
  Bf16* MakeCode(const TensorView& x, const PackedMatrix& w, Bf16* to) {
    const TensorView code =
        work_.projector->Multiply(x, w, nullptr, /*accumulate=*/false, work_.codes.as<float>());
    model_.device()->ops().Convert(code, TensorView::Of(to, code.rows, code.cols), model_.stream());
    return to + code.rows * code.cols;
  }

  const Transformer& model_;
  const std::vector<EncoderLayer>& layers_;
  const EncoderMemory& work_;
  std::unique_ptr<FrameOutbox> outbox_;
};

double FlopsPerToken(const std::vector<EncoderLayer>& layers) {
  double flops = 0;
  for (const EncoderLayer& layer : layers) flops += layer.flops_per_token();
  return flops;
}

class ScdEncoderFactory : public EncoderFactory {
 public:
  ScdEncoderFactory(std::string name, std::string hash, const Transformer& model,
                    std::vector<EncoderLayer> layers, EncoderMemory work)
      : EncoderFactory(ScdSpec(std::move(name), std::move(hash), layers.size(), MaxRank(layers)),
                       FlopsPerToken(layers)),
        model_(model),
        layers_(std::move(layers)),
        work_(std::move(work)) {}

  absl::StatusOr<std::unique_ptr<KvEncoder>> NewEncoder() const override {
    ALUDEL_ASSIGN_OR_RETURN(auto outbox,
                            FrameOutbox::Create(model_, spec().max_frame_bytes(model_.options().max_rows)));
    return std::make_unique<ScdEncoder>(model_, layers_, work_, std::move(outbox));
  }

 private:
  const Transformer& model_;
  std::vector<EncoderLayer> layers_;
  EncoderMemory work_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EncoderFactory>> MakeScdEncoders(std::string format, std::string artifact_hash,
                                                                const ScdEncoderWeights& weights,
                                                                const Transformer& model) {
  std::vector<EncoderLayer> layers(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    layers[i].mode = weights[i].mode;
    if (weights[i].mode == ScdMode::kPatch) {
      ALUDEL_ASSIGN_OR_RETURN(layers[i].h, PackFor(model, weights[i].h));
    } else {
      ALUDEL_ASSIGN_OR_RETURN(layers[i].k, PackFor(model, weights[i].k));
      ALUDEL_ASSIGN_OR_RETURN(layers[i].v, PackFor(model, weights[i].v));
    }
  }
  ALUDEL_ASSIGN_OR_RETURN(EncoderMemory work, MakeEncoderMemory(model, layers));
  return std::make_unique<ScdEncoderFactory>(std::move(format), std::move(artifact_hash), model,
                                             std::move(layers), std::move(work));
}

}  // namespace aludel
