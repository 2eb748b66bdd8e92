#include "runtime/codec/aludel/encode.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "kernels/check.h"
#include "runtime/codec/aludel/latent_packing.h"
#include "runtime/codec/aludel/latent_products.h"
#include "runtime/codec/aludel/spec.h"
#include "runtime/codec/coverage.h"
#include "runtime/codec/outbox.h"
#include "runtime/codec/video/video_coder.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

struct EncoderGroup {
  AludelGroup shape;
  LatentGrid grid;
  std::unique_ptr<LatentCoder> coder;               // null unless it packs
  std::function<size_t(int64_t tokens)> max_bytes;  // of a payload

  // Of a layer in the group, if it is in it.
  std::optional<int> PlaceOf(int layer) const {
    const int at = layer - shape.first_layer;
    if (at < 0 || at >= shape.layers) return std::nullopt;
    return at;
  }
};

class AludelEncoder : public KvEncoder {
 public:
  AludelEncoder(const Transformer& model, const AludelShape& shape, const std::vector<EncoderGroup>& groups,
                std::unique_ptr<LatentProducts> products, std::unique_ptr<FrameOutbox> outbox)
      : model_(model),
        shape_(shape),
        groups_(groups),
        products_(std::move(products)),
        outbox_(std::move(outbox)) {}

  absl::Status Encode(const LayerSlice& slice, FrameSink& sink) override {
    ALUDEL_RETURN_IF_ERROR(outbox_->Poll(sink));
    if (slice.layer == shape_.recomputed_layers) products_->AddSide(slice);
    for (size_t g = 0; g < groups_.size(); ++g) {
      const std::optional<int> at = groups_[g].PlaceOf(slice.layer);
      if (!at.has_value()) continue;
      products_->AddLayer(slice, g, *at);
      if (*at + 1 == groups_[g].shape.layers) return Ship(slice, g, sink);
    }
    return absl::OkStatus();
  }

  TensorView KvRows(int layer) override {
    for (const EncoderGroup& group : groups_) {
      const std::optional<int> at = group.PlaceOf(layer);
      if (at.has_value()) return products_->KvRows(*at);
    }
    return {};
  }

 private:
  absl::Status Ship(const LayerSlice& slice, size_t g, FrameSink& sink) {
    const EncoderGroup& group = groups_[g];
    const int64_t tokens = slice.tokens();
    const std::vector<int>& bits = group.grid.bits;
    const TensorView z = products_->Latents(g, tokens);
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
  std::unique_ptr<LatentProducts> products_;
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
                       std::unique_ptr<LatentProductsFactory> products, const Transformer& model)
      : EncoderFactory(std::move(spec), FlopsPerToken(shape, model.config())),
        shape_(std::move(shape)),
        groups_(std::move(groups)),
        products_(std::move(products)),
        model_(model) {}

  absl::StatusOr<std::unique_ptr<KvEncoder>> NewEncoder() const override {
    size_t bytes = 0;
    for (const EncoderGroup& group : groups_) {
      bytes = std::max(bytes, PlaneBytes(group.grid.bits, shape_.packing, model_.options().max_rows));
    }
    ALUDEL_ASSIGN_OR_RETURN(auto products, products_->New());
    ALUDEL_ASSIGN_OR_RETURN(auto outbox, FrameOutbox::Create(model_, bytes));
    return std::make_unique<AludelEncoder>(model_, shape_, groups_, std::move(products), std::move(outbox));
  }

 private:
  const AludelShape shape_;
  const std::vector<EncoderGroup> groups_;
  const std::unique_ptr<LatentProductsFactory> products_;
  const Transformer& model_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EncoderFactory>> MakeAludelEncoders(
    std::string format, std::string artifact_hash, AludelShape shape, const AludelEncoderWeights& weights,
    const Transformer& model, int base_planes) {
  ALUDEL_CHECK(weights.size() == shape.groups.size());
  std::vector<EncoderGroup> groups(weights.size());
  for (size_t g = 0; g < weights.size(); ++g) {
    EncoderGroup& group = groups[g];
    group.shape = shape.groups[g];
    group.grid = weights[g].grid;
    group.coder = MakeLatentCoder(group.grid, shape.packing, shape.planes);
    group.max_bytes = PackedBound(group.grid, shape.packing);
  }
  ALUDEL_ASSIGN_OR_RETURN(auto products, MakeLatentProducts(model, shape, weights));
  std::vector<LatentGrid> grids;
  for (const EncoderGroup& group : groups) grids.push_back(group.grid);
  if (shape.packing == LatentPacking::kVideo) {
    ALUDEL_RETURN_IF_ERROR(VideoCoder::CheckEncoder(grids, model.options().max_rows));
  }
  return std::make_unique<AludelEncoderFactory>(AludelSpec(std::move(format), std::move(artifact_hash), shape,
                                                           grids, model.config().layers, base_planes),
                                                std::move(shape), std::move(groups), std::move(products),
                                                model);
}

}  // namespace aludel
