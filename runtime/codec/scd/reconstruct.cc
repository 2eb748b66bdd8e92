#include "runtime/codec/scd/reconstruct.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "kernels/stream_marks.h"
#include "runtime/codec/coverage.h"
#include "runtime/codec/scd/patch.h"
#include "runtime/codec/scd/projector.h"
#include "runtime/codec/scd/spec.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

struct DecoderLayer {
  ScdMode mode = ScdMode::kReuse;
  std::unique_ptr<PackedMatrix> k, v;
  std::optional<PackedAligner> aligner;
  int64_t rank_k = 0;  // of the code that K or, in a patch layer, H is made from
  int64_t rank_v = 0;

  int64_t rank() const { return rank_k + rank_v; }

  double FlopsPerToken(const ModelConfig& config) const {
    if (mode == ScdMode::kReuse) return 2.0 * static_cast<double>(rank()) * config.kv_dim();
    const auto width = static_cast<double>(aligner->width());
    const auto code = static_cast<double>(rank_k);
    const double align = config.hidden * code + 2 * width * code + config.hidden * width;
    return 2.0 * (align + 2.0 * config.hidden * config.kv_dim());
  }
};

// What a codec's decoders compute in, one call after the other: each call's work comes behind that of the one before.
struct DecoderMemory {
  Buffer wire;     // bf16 [max_rows, rank]
  Buffer h;        // f32 [PaddedRows(max_rows), hidden]
  Buffer k, v;     // f32 [PaddedRows(max_rows), kv_dim]
  Buffer scratch;  // of the aligners
  std::unique_ptr<Projector> projector;
};

int64_t MaxRank(const std::vector<DecoderLayer>& layers) {
  int64_t rank = 0;
  for (const DecoderLayer& layer : layers) rank = std::max(rank, layer.rank());
  return rank;
}

absl::StatusOr<DecoderMemory> MakeDecoderMemory(const Transformer& model,
                                                const std::vector<DecoderLayer>& layers) {
  const ModelConfig& config = model.config();
  const int64_t max_rows = model.options().max_rows;
  const int64_t padded = PaddedRows(max_rows);
  int64_t input = 0, scratch = 0;
  for (const DecoderLayer& layer : layers) {
    input = std::max({input, layer.rank_k, layer.rank_v});
    if (!layer.aligner.has_value()) continue;
    input = std::max(input, layer.aligner->width());
    scratch = std::max(scratch, layer.aligner->ScratchFloats(max_rows));
  }
  DecoderMemory work;
  ALUDEL_ASSIGN_OR_RETURN(work.wire, AllocateZeroed(model, max_rows * MaxRank(layers) * sizeof(Bf16)));
  ALUDEL_ASSIGN_OR_RETURN(work.h, AllocateZeroed(model, padded * config.hidden * sizeof(float)));
  ALUDEL_ASSIGN_OR_RETURN(work.k, AllocateZeroed(model, padded * config.kv_dim() * sizeof(float)));
  ALUDEL_ASSIGN_OR_RETURN(work.v, AllocateZeroed(model, padded * config.kv_dim() * sizeof(float)));
  ALUDEL_ASSIGN_OR_RETURN(work.scratch, AllocateZeroed(model, scratch * sizeof(float)));
  ALUDEL_ASSIGN_OR_RETURN(work.projector, Projector::Create(model, input));
  return work;
}

class ScdDecoder : public KvDecoder {
 public:
  ScdDecoder(const Transformer& model, const std::vector<DecoderLayer>& layers, const DecoderMemory& work)
      : model_(model), layers_(layers), work_(work) {}

  absl::Status Begin(const KvTarget&) override { return absl::OkStatus(); }

  absl::Status Apply(const FrameCoverage& coverage, absl::Span<const uint8_t> payload,
                     const KvTarget& target) override {
    ALUDEL_RETURN_IF_ERROR(CheckLayerFrame(coverage, static_cast<int>(layers_.size()), target));
    ALUDEL_CHECK(target.model == &model_);
    const DecoderLayer& layer = layers_[coverage.first_layer];
    const size_t want = static_cast<size_t>(coverage.tokens * layer.rank()) * sizeof(Bf16);
    if (payload.size() != want) {
      return absl::DataLossError(
          absl::StrFormat("scd frame of layer %d: payload is %d bytes, want %d (%d tokens of rank %d)",
                          coverage.first_layer, payload.size(), want, coverage.tokens, layer.rank()));
    }
    const uint8_t* second = payload.data() + coverage.tokens * layer.rank_k * sizeof(Bf16);
    const int64_t max_rows = model_.options().max_rows;
    for (int64_t begin = 0; begin < coverage.tokens; begin += max_rows) {
      const int64_t rows = std::min<int64_t>(max_rows, coverage.tokens - begin);
      const TensorView z_k = Upload(payload.data(), begin, rows, layer.rank_k, 0);
      const TensorView z_v = Upload(second, begin, rows, layer.rank_v, rows * layer.rank_k);
      Reconstruct(coverage.first_layer, z_k, z_v, target);
      const int kv_dim = model_.config().kv_dim();
      target.model->WriteKv(coverage.first_layer, coverage.token_begin + begin, target.blocks,
                            TensorView::Of(work_.k.as<float>(), rows, kv_dim),
                            TensorView::Of(work_.v.as<float>(), rows, kv_dim), *target.pool);
    }
    return Enqueued(*model_.device(), model_.stream());
  }

 private:
  // Rows [begin, begin + rows) of a code plane, on the device from element `at` of the wire buffer.
  TensorView Upload(const uint8_t* plane, int64_t begin, int64_t rows, int64_t rank, int64_t at) {
    Bf16* device = work_.wire.as<Bf16>() + at;
    const size_t row_bytes = rank * sizeof(Bf16);
    model_.device()->CopyToDevice(device, plane + begin * row_bytes, rows * row_bytes, model_.stream());
    return TensorView::Of(device, rows, rank);
  }

  // Fills k and v of the decoder's memory.
  void Reconstruct(int index, const TensorView& z_k, const TensorView& z_v, const KvTarget& target) {
    const DecoderLayer& layer = layers_[index];
    float* k = work_.k.as<float>();
    float* v = work_.v.as<float>();
    if (layer.mode == ScdMode::kReuse) {
      work_.projector->Multiply(z_k, *layer.k, nullptr, /*accumulate=*/false, k);
      work_.projector->Multiply(z_v, *layer.v, nullptr, /*accumulate=*/false, v);
      return;
    }
    const TensorView h =
        layer.aligner->Apply(model_, z_k, *work_.projector, work_.scratch.as<float>(), work_.h.as<float>());
    const int kv_dim = model_.config().kv_dim();
    target.model->ProjectKv(index, h, TensorView::Of(k, h.rows, kv_dim), TensorView::Of(v, h.rows, kv_dim),
                            target.adapter);
  }

  const Transformer& model_;
  const std::vector<DecoderLayer>& layers_;
  const DecoderMemory& work_;
};

double FlopsPerToken(const std::vector<DecoderLayer>& layers, const ModelConfig& config) {
  double flops = 0;
  for (const DecoderLayer& layer : layers) flops += layer.FlopsPerToken(config);
  return flops;
}

class ScdDecoderFactory : public DecoderFactory {
 public:
  ScdDecoderFactory(std::string name, std::string hash, const Transformer& model,
                    std::vector<DecoderLayer> layers, DecoderMemory work)
      : DecoderFactory(ScdSpec(std::move(name), std::move(hash), layers.size(), MaxRank(layers)),
                       FlopsPerToken(layers, model.config())),
        model_(model),
        layers_(std::move(layers)),
        work_(std::move(work)) {}

  absl::StatusOr<std::unique_ptr<KvDecoder>> NewDecoder() const override {
    return std::make_unique<ScdDecoder>(model_, layers_, work_);
  }

 private:
  const Transformer& model_;
  std::vector<DecoderLayer> layers_;
  DecoderMemory work_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DecoderFactory>> MakeScdDecoders(std::string format, std::string artifact_hash,
                                                                const ScdDecoderWeights& weights,
                                                                const Transformer& model) {
  std::vector<DecoderLayer> layers(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    DecoderLayer& layer = layers[i];
    layer.mode = weights[i].mode;
    if (layer.mode == ScdMode::kPatch) {
      layer.rank_k = weights[i].aligner.skip.cols;
      ALUDEL_ASSIGN_OR_RETURN(layer.aligner, PackedAligner::Create(model, weights[i].aligner));
    } else {
      layer.rank_k = weights[i].k.cols;
      layer.rank_v = weights[i].v.cols;
      ALUDEL_ASSIGN_OR_RETURN(layer.k, PackFor(model, weights[i].k));
      ALUDEL_ASSIGN_OR_RETURN(layer.v, PackFor(model, weights[i].v));
    }
  }
  ALUDEL_ASSIGN_OR_RETURN(DecoderMemory work, MakeDecoderMemory(model, layers));
  return std::make_unique<ScdDecoderFactory>(std::move(format), std::move(artifact_hash), model,
                                             std::move(layers), std::move(work));
}

}  // namespace aludel
