#include "runtime/codec/aludel/reconstruct.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "runtime/codec/aludel/latent_packing.h"
#include "runtime/codec/aludel/spec.h"
#include "runtime/codec/coverage.h"
#include "runtime/codec/scd/projector.h"
#include "runtime/codec/video/video_coder.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

struct DecoderGroup {
  AludelGroup shape;
  LatentGrid grid;
  std::unique_ptr<LatentCoder> coder;    // null unless it packs
  int64_t inputs = 0;                    // side + padded rank
  int64_t outputs = 0;                   // layers * 2 * kv_dim
  int64_t width = 0;                     // of the MLP, 0 without one
  std::unique_ptr<PackedMatrix> linear;  // null where the MLP does all
  std::unique_ptr<PackedMatrix> hidden, out;
  Buffer bias, hidden_bias;

  double FlopsPerToken() const {
    const auto mlp = static_cast<double>(width * (inputs + outputs));
    const auto direct = linear == nullptr ? 0.0 : static_cast<double>(inputs * outputs);
    return 2.0 * (mlp + direct);
  }
};

// What a codec's decoders compute in, one call after the other.
struct DecoderMemory {
  // f32 [max_rows, padded rank], behind a group's own columns leftovers of others: matrices are 0 there.
  Buffer latents;
  Buffer hidden;   // f32 [PaddedRows(max_rows), width]
  Buffer active;   // the model's compute type, of the same shape: hidden after its activation
  Buffer outputs;  // output_type [PaddedRows(max_rows), outputs]
  // bf16 pages round K and V anyway; a sum of two products is rounded once, at its end.
  DType output_type = DType::kF32;
  std::unique_ptr<Projector> projector;
  int64_t max_rows = 0;  // decoded at a time
};

absl::StatusOr<DecoderMemory> MakeDecoderMemory(const Transformer& model,
                                                const std::vector<DecoderGroup>& groups) {
  int64_t inputs = 0, rank = 0, width = 0, outputs = 0;
  bool sums = false;
  for (const DecoderGroup& group : groups) {
    inputs = std::max(inputs, group.inputs);
    rank = std::max(rank, PaddedColumns(group.shape.rank));
    width = std::max(width, group.width);
    outputs = std::max(outputs, group.outputs);
    sums = sums || (group.linear != nullptr && group.width > 0);
  }
  DecoderMemory work;
  work.output_type = sums ? DType::kF32 : model.options().compute;
  work.max_rows = RowsAtATime(model, outputs * static_cast<int64_t>(SizeOf(work.output_type)));
  const int64_t padded = PaddedRows(work.max_rows);
  ALUDEL_ASSIGN_OR_RETURN(work.latents, AllocateZeroed(model, work.max_rows * rank * sizeof(float)));
  ALUDEL_ASSIGN_OR_RETURN(work.hidden, AllocateZeroed(model, padded * width * sizeof(float)));
  ALUDEL_ASSIGN_OR_RETURN(work.active,
                          AllocateZeroed(model, padded * width * SizeOf(model.options().compute)));
  ALUDEL_ASSIGN_OR_RETURN(work.outputs, AllocateZeroed(model, padded * outputs * SizeOf(work.output_type)));
  ALUDEL_ASSIGN_OR_RETURN(work.projector, Projector::Create(model, inputs));
  return work;
}

class AludelDecoder : public KvDecoder {
 public:
  AludelDecoder(const Transformer& model, const AludelShape& shape, const std::vector<DecoderGroup>& groups,
                const DecoderMemory& work)
      : model_(model), shape_(shape), groups_(groups), work_(work) {}

  absl::Status Begin(const KvTarget& target) override {
    ALUDEL_CHECK(target.model == &model_);
    if (!shape_.has_side()) return absl::OkStatus();
    const int64_t max_rows = model_.options().max_rows;
    const size_t row_bytes = model_.config().hidden * SizeOf(model_.options().compute);
    ALUDEL_ASSIGN_OR_RETURN(side_, model_.device()->Allocate(target.tokens * row_bytes));
    for (int64_t begin = 0; begin < target.tokens; begin += max_rows) {
      BatchItem item;
      item.ids = target.prompt.subspan(begin, std::min(max_rows, target.tokens - begin));
      item.position = begin;
      item.blocks = target.blocks;
      item.adapter = target.adapter;
      ALUDEL_RETURN_IF_ERROR(
          target.model->ForwardShallow(absl::MakeSpan(&item, 1), shape_.recomputed_layers, *target.pool,
                                       Side(begin, static_cast<int64_t>(item.ids.size()))));
    }
    return absl::OkStatus();
  }

  absl::Status Apply(const FrameCoverage& coverage, absl::Span<const uint8_t> payload,
                     const KvTarget& target) override {
    ALUDEL_ASSIGN_OR_RETURN(const DecoderGroup* group, GroupOf(coverage, target));
    std::vector<uint8_t> opened;
    const absl::StatusOr<OpenedPlanes> planes =
        OpenPlanes(payload, group->grid, shape_.packing, group->coder.get(), coverage.tokens, &opened);
    if (!planes.ok()) {
      return absl::DataLossError(
          absl::StrFormat("frame of layer %d: %s", coverage.first_layer, planes.status().message()));
    }
    Device& device = *model_.device();
    const size_t bytes = planes->bytes.size();
    if (wire_.size() < bytes) {
      ALUDEL_ASSIGN_OR_RETURN(wire_, device.Allocate(bytes));
    }
    device.CopyToDevice(wire_.data(), planes->bytes.data(), bytes, model_.stream());
    const std::vector<LatentPlane> layout = PlanesOf(planes->scale.bits, shape_.packing, coverage.tokens);
    for (int64_t begin = 0; begin < coverage.tokens; begin += work_.max_rows) {
      const int64_t rows = std::min<int64_t>(work_.max_rows, coverage.tokens - begin);
      const TensorView latents =
          TensorView::Of(work_.latents.as<float>(), rows, PaddedColumns(group->shape.rank));
      device.ops().UnpackLatents(wire_.as<uint8_t>(), layout, begin, planes->scale.step,
                                 latents.Cols(0, group->shape.rank), model_.stream());
      Reconstruct(*group, latents, coverage.token_begin + begin, target);
    }
    // The caller's bytes and the decoder's memory are free again when this returns.
    return device.Synchronize(model_.stream());
  }

 private:
  // The group that a frame holds whole, after every check of its coverage.
  absl::StatusOr<const DecoderGroup*> GroupOf(const FrameCoverage& coverage, const KvTarget& target) const {
    FrameCoverage one_layer = coverage;
    one_layer.layers = 1;
    ALUDEL_RETURN_IF_ERROR(CheckLayerFrame(one_layer, model_.config().layers, target));
    for (const DecoderGroup& group : groups_) {
      if (group.shape.first_layer == coverage.first_layer && group.shape.layers == coverage.layers) {
        return &group;
      }
    }
    return absl::DataLossError(
        absl::StrFormat("frame holds layers [%d, %d), which are no group of its format", coverage.first_layer,
                        coverage.first_layer + coverage.layers));
  }

  void Reconstruct(const DecoderGroup& group, const TensorView& latents, int64_t position,
                   const KvTarget& target) {
    const std::array<TensorView, 2> inputs = {shape_.has_side() ? Side(position, latents.rows) : TensorView(),
                                              latents};
    const TensorView kv = Decode(group, absl::MakeConstSpan(inputs).subspan(shape_.has_side() ? 0 : 1));
    const int64_t kv_dim = model_.config().kv_dim();
    for (int i = 0; i < group.shape.layers; ++i) {
      target.model->WriteKv(group.shape.first_layer + i, position, target.blocks,
                            kv.Cols(2 * i * kv_dim, kv_dim), kv.Cols((2 * i + 1) * kv_dim, kv_dim),
                            *target.pool);
    }
  }

  // H of tokens [position, position + rows).
  TensorView Side(int64_t position, int64_t rows) const {
    const int64_t hidden = model_.config().hidden;
    const TensorView all{side_.data(), model_.options().compute, position + rows, hidden, hidden};
    return all.Rows(position, rows);
  }

  // `inputs` are the columns of u.
  TensorView Decode(const DecoderGroup& group, absl::Span<const TensorView> inputs) {
    Projector& projector = *work_.projector;
    void* const outputs = work_.outputs.data();
    const float* bias = group.bias.as<float>();
    TensorView kv;
    if (group.linear != nullptr) {
      kv = projector.Multiply(inputs, *group.linear, bias, /*accumulate=*/false, outputs, work_.output_type);
    }
    if (group.width == 0) return kv;
    const TensorView hidden = projector.Multiply(inputs, *group.hidden, group.hidden_bias.as<float>(),
                                                 /*accumulate=*/false, work_.hidden.data());
    const TensorView active{work_.active.data(), model_.options().compute, hidden.rows, group.width,
                            group.width};
    model_.device()->ops().Silu(hidden, active, model_.stream());
    const bool direct = group.linear != nullptr;
    return projector.MultiplyPadded(active, *group.out, direct ? nullptr : bias, direct, outputs,
                                    work_.output_type);
  }

  const Transformer& model_;
  const AludelShape& shape_;
  const std::vector<DecoderGroup>& groups_;
  const DecoderMemory& work_;
  Buffer side_;  // the model's compute type [tokens up to the last that is handed over, hidden]
  Buffer wire_;  // a payload, as large as the largest so far
};

double FlopsPerToken(const AludelShape& shape, const std::vector<DecoderGroup>& groups,
                     const ModelConfig& config) {
  // K and V of the layer behind the recomputed ones come from the consumer's own projections.
  double flops = shape.has_side() ? 2.0 * config.hidden * 2.0 * config.kv_dim() : 0.0;
  for (const DecoderGroup& group : groups) flops += group.FlopsPerToken();
  return flops;
}

class AludelDecoderFactory : public DecoderFactory {
 public:
  AludelDecoderFactory(CodecSpec spec, AludelShape shape, std::vector<DecoderGroup> groups,
                       DecoderMemory work, const Transformer& model)
      : DecoderFactory(std::move(spec), FlopsPerToken(shape, groups, model.config())),
        shape_(std::move(shape)),
        groups_(std::move(groups)),
        work_(std::move(work)),
        model_(model) {}

  absl::StatusOr<std::unique_ptr<KvDecoder>> NewDecoder() const override {
    return std::make_unique<AludelDecoder>(model_, shape_, groups_, work_);
  }

 private:
  AludelShape shape_;
  std::vector<DecoderGroup> groups_;
  DecoderMemory work_;
  const Transformer& model_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DecoderFactory>> MakeAludelDecoders(std::string format,
                                                                   std::string artifact_hash,
                                                                   AludelShape shape,
                                                                   const AludelDecoderWeights& weights,
                                                                   const Transformer& model) {
  ALUDEL_CHECK(weights.size() == shape.groups.size());
  std::vector<DecoderGroup> groups(weights.size());
  for (size_t g = 0; g < weights.size(); ++g) {
    const AludelDecoderGroup& from = weights[g];
    DecoderGroup& group = groups[g];
    group.shape = shape.groups[g];
    group.grid = from.grid;
    group.coder =
        MakeLatentCoder(group.grid, shape.packing, shape.planes == 0 ? group.grid.planes : shape.planes);
    group.inputs = PaddedColumns(group.shape.rank) + (shape.has_side() ? model.config().hidden : 0);
    group.outputs = static_cast<int64_t>(from.bias.size());
    group.width = from.hidden.rows;
    if (from.linear.rows > 0) {
      ALUDEL_ASSIGN_OR_RETURN(group.linear,
                              PackFor(model, PaddedTo(from.linear, from.linear.rows, group.inputs)));
    }
    if (group.width > 0) {
      ALUDEL_ASSIGN_OR_RETURN(group.hidden,
                              PackFor(model, PaddedTo(from.hidden, from.hidden.rows, group.inputs)));
      ALUDEL_ASSIGN_OR_RETURN(group.hidden_bias, UploadFor(model, from.hidden_bias));
      ALUDEL_ASSIGN_OR_RETURN(group.out, PackFor(model, from.out));
    }
    ALUDEL_ASSIGN_OR_RETURN(group.bias, UploadFor(model, from.bias));
  }
  ALUDEL_ASSIGN_OR_RETURN(DecoderMemory work, MakeDecoderMemory(model, groups));
  std::vector<LatentGrid> grids;
  for (const DecoderGroup& group : groups) grids.push_back(group.grid);
  if (shape.packing == LatentPacking::kVideo) ALUDEL_RETURN_IF_ERROR(VideoCoder::CheckDecoder(grids));
  return std::make_unique<AludelDecoderFactory>(
      AludelSpec(std::move(format), std::move(artifact_hash), shape, grids, model.config().layers),
      std::move(shape), std::move(groups), std::move(work), model);
}

}  // namespace aludel
