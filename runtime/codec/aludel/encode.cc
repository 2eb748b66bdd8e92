#include "runtime/codec/aludel/encode.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "kernels/check.h"
#include "runtime/codec/aludel/latent_packing.h"
#include "runtime/codec/aludel/spec.h"
#include "runtime/codec/coverage.h"
#include "runtime/codec/outbox.h"
#include "runtime/codec/scd/projector.h"
#include "runtime/codec/video/video_coder.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

struct EncoderGroup {
  AludelGroup shape;
  std::vector<std::unique_ptr<PackedMatrix>> kv;  // [layers] the encoder's columns of K and V
  std::unique_ptr<PackedMatrix> side;             // null without side information
  Buffer offset;
  LatentGrid grid;
  std::unique_ptr<LatentCoder> coder;               // null unless it packs
  std::function<size_t(int64_t tokens)> max_bytes;  // of a payload

  int64_t stride() const { return PaddedColumns(shape.rank); }  // of latents
};

// Columns [begin, begin + count) of a matrix.
HostMatrix Columns(const HostMatrix& matrix, int64_t begin, int64_t count) {
  HostMatrix columns = HostMatrix::Zeros(matrix.rows, count);
  for (int64_t i = 0; i < matrix.rows; ++i) std::copy_n(matrix.row(i) + begin, count, columns.row(i));
  return columns;
}

class AludelEncoder : public KvEncoder {
 public:
  AludelEncoder(const Transformer& model, const AludelShape& shape, const std::vector<EncoderGroup>& groups,
                Projector& projector, std::vector<Buffer> latents, std::unique_ptr<FrameOutbox> outbox)
      : model_(model),
        shape_(shape),
        groups_(groups),
        projector_(projector),
        latents_(std::move(latents)),
        outbox_(std::move(outbox)) {}

  absl::Status Encode(const LayerSlice& slice, FrameSink& sink) override {
    ALUDEL_RETURN_IF_ERROR(outbox_->Poll(sink));
    if (slice.layer == shape_.recomputed_layers) {
      const TensorView h = projector_.Stage(absl::MakeConstSpan(&slice.h, 1));
      for (size_t g = 0; g < groups_.size(); ++g) {
        MultiplyPadded(model_, h, *groups_[g].side, groups_[g].offset.as<float>(), /*accumulate=*/false,
                       latents_[g].data());
      }
    }
    for (size_t g = 0; g < groups_.size(); ++g) {
      const int at = slice.layer - groups_[g].shape.first_layer;
      if (at < 0 || at >= groups_[g].shape.layers) continue;
      AddLayer(slice, groups_[g], at, latents_[g].as<float>());
      if (at + 1 == groups_[g].shape.layers) return Ship(slice, groups_[g], latents_[g], sink);
    }
    return absl::OkStatus();
  }

 private:
  void AddLayer(const LayerSlice& slice, const EncoderGroup& group, int at, float* latents) {
    const bool started = at > 0 || shape_.has_side();
    const int64_t step = RowsAtATime(model_, 2 * model_.config().kv_dim() * SizeOf(model_.options().compute));
    for (int64_t begin = 0; begin < slice.tokens(); begin += step) {
      const int64_t rows = std::min(step, slice.tokens() - begin);
      const TensorView kv[] = {slice.k.Rows(begin, rows), slice.v.Rows(begin, rows)};
      projector_.Multiply(kv, *group.kv[at], started ? nullptr : group.offset.as<float>(), started,
                          latents + begin * group.stride());
    }
  }

  absl::Status Ship(const LayerSlice& slice, const EncoderGroup& group, const Buffer& latents,
                    FrameSink& sink) {
    const int64_t tokens = slice.tokens();
    const std::vector<int>& bits = group.grid.bits;
    const TensorView z =
        TensorView::Of(latents.as<float>(), tokens, group.stride()).Cols(0, group.shape.rank);
    uint8_t* const planes = outbox_->Next();
    model_.device()->ops().PackLatents(z, 1.0f / group.grid.step, PlanesOf(bits, shape_.packing, tokens),
                                       planes, model_.stream());
    FrameCoverage coverage = SliceCoverage(slice);
    coverage.first_layer = static_cast<uint16_t>(group.shape.first_layer);
    coverage.layers = static_cast<uint16_t>(group.shape.layers);
    const size_t bytes = PlaneBytes(bits, shape_.packing, tokens);
    const bool last = slice.layer + 1 == model_.config().layers;
    if (shape_.packing == LatentPacking::kFixed) return outbox_->Add(coverage, bytes, last, sink);
    FrameOutbox::Coding coding{group.max_bytes(tokens), DeflatePlanes};
    if (group.coder != nullptr) {
      coding.code = [&coder = *group.coder, tokens](absl::Span<const uint8_t> from,
                                                    absl::Span<uint8_t> payload) {
        return coder.Encode(from, tokens, payload);
      };
    }
    return outbox_->Add(coverage, bytes, std::move(coding), last, sink);
  }

  const Transformer& model_;
  const AludelShape& shape_;
  const std::vector<EncoderGroup>& groups_;
  Projector& projector_;
  std::vector<Buffer> latents_;  // per group f32 [PaddedRows(max_rows), stride()]
  std::unique_ptr<FrameOutbox> outbox_;
};

double FlopsPerToken(const AludelShape& shape, const ModelConfig& config) {
  double flops = 0;
  for (const AludelGroup& group : shape.groups) {
    const int64_t columns = group.layers * 2 * config.kv_dim() + (shape.has_side() ? config.hidden : 0);
    flops += 2.0 * static_cast<double>(group.rank * columns);
  }
  return flops;
}

class AludelEncoderFactory : public EncoderFactory {
 public:
  AludelEncoderFactory(CodecSpec spec, AludelShape shape, std::vector<EncoderGroup> groups,
                       std::unique_ptr<Projector> projector, const Transformer& model)
      : EncoderFactory(std::move(spec), FlopsPerToken(shape, model.config())),
        shape_(std::move(shape)),
        groups_(std::move(groups)),
        projector_(std::move(projector)),
        model_(model) {}

  absl::StatusOr<std::unique_ptr<KvEncoder>> NewEncoder() const override {
    const int64_t max_rows = model_.options().max_rows;
    std::vector<Buffer> latents;
    size_t bytes = 0;
    for (const EncoderGroup& group : groups_) {
      bytes = std::max(bytes, PlaneBytes(group.grid.bits, shape_.packing, max_rows));
      // The first product of every slice writes its padding, too.
      const int64_t floats = PaddedRows(max_rows) * group.stride();
      ALUDEL_ASSIGN_OR_RETURN(Buffer buffer, model_.device()->Allocate(floats * sizeof(float)));
      latents.push_back(std::move(buffer));
    }
    ALUDEL_ASSIGN_OR_RETURN(auto outbox, FrameOutbox::Create(model_, bytes));
    return std::make_unique<AludelEncoder>(model_, shape_, groups_, *projector_, std::move(latents),
                                           std::move(outbox));
  }

 private:
  AludelShape shape_;
  std::vector<EncoderGroup> groups_;
  std::unique_ptr<Projector> projector_;  // of all its encoders
  const Transformer& model_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EncoderFactory>> MakeAludelEncoders(
    std::string format, std::string artifact_hash, AludelShape shape, const AludelEncoderWeights& weights,
    const Transformer& model, int base_planes) {
  ALUDEL_CHECK(weights.size() == shape.groups.size());
  const ModelConfig& config = model.config();
  const int64_t kv_dim = config.kv_dim();
  std::vector<EncoderGroup> groups(weights.size());
  for (size_t g = 0; g < weights.size(); ++g) {
    EncoderGroup& group = groups[g];
    group.shape = shape.groups[g];
    group.grid = weights[g].grid;
    group.coder = MakeLatentCoder(group.grid, shape.packing, shape.planes);
    group.max_bytes = PackedBound(group.grid, shape.packing);
    for (int i = 0; i < group.shape.layers; ++i) {
      HostMatrix columns = Columns(weights[g].matrix, 2 * i * kv_dim, 2 * kv_dim);
      ALUDEL_ASSIGN_OR_RETURN(auto kv, PackFor(model, PaddedTo(columns, group.stride(), columns.cols)));
      group.kv.push_back(std::move(kv));
    }
    if (shape.has_side()) {
      ALUDEL_ASSIGN_OR_RETURN(group.side,
                              PackFor(model, PaddedTo(weights[g].side, group.stride(), config.hidden)));
    }
    std::vector<float> offset = weights[g].offset;
    offset.resize(group.stride());
    ALUDEL_ASSIGN_OR_RETURN(group.offset, UploadFor(model, offset));
  }
  ALUDEL_ASSIGN_OR_RETURN(auto projector,
                          Projector::Create(model, std::max<int64_t>(config.hidden, 2 * config.kv_dim())));
  std::vector<LatentGrid> grids;
  for (const EncoderGroup& group : groups) grids.push_back(group.grid);
  if (shape.packing == LatentPacking::kVideo) {
    ALUDEL_RETURN_IF_ERROR(VideoCoder::CheckEncoder(grids, model.options().max_rows));
  }
  return std::make_unique<AludelEncoderFactory>(
      AludelSpec(std::move(format), std::move(artifact_hash), shape, grids, config.layers, base_planes),
      std::move(shape), std::move(groups), std::move(projector), model);
}

}  // namespace aludel
