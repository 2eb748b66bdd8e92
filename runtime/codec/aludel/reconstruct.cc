#include "runtime/codec/aludel/reconstruct.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/check.h"
#include "kernels/stream_marks.h"
#include "runtime/codec/aludel/affine.h"
#include "runtime/codec/aludel/code_range.h"
#include "runtime/codec/aludel/latent_packing.h"
#include "runtime/codec/aludel/plane_upgrades.h"
#include "runtime/codec/aludel/spec.h"
#include "runtime/codec/coverage.h"
#include "runtime/codec/scd/projector.h"
#include "runtime/codec/staging_ring.h"
#include "runtime/codec/video/video_coder.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

struct DecoderGroup {
  AludelGroup shape;
  LatentGrid grid;
  std::unique_ptr<LatentCoder> coder;  // null unless it packs
  int64_t inputs = 0;                  // columns of u without those of biases: side + padded rank
  int64_t outputs = 0;                 // layers * 2 * kv_dim
  int64_t width = 0;                   // of the MLP, 0 without one
  Affine linear;                       // none where the MLP does all
  Affine hidden, out;  // none without an MLP; the bias of the outputs is of the first product to them

  double FlopsPerToken() const {
    const auto mlp = static_cast<double>(width * (inputs + outputs));
    const auto direct = linear.w == nullptr ? 0.0 : static_cast<double>(inputs * outputs);
    return 2.0 * (mlp + direct);
  }
};

// The first columns of u: H, or some directions of it.
struct SideInputs {
  int64_t columns = 0;                       // 0: no side information
  std::unique_ptr<PackedMatrix> directions;  // S; null: all of H

  double FlopsPerToken(const ModelConfig& config) const {
    if (columns == 0) return 0;
    // K and V of the layer behind the recomputed ones come from the consumer's own projections.
    const auto others = static_cast<double>(directions == nullptr ? 0 : columns);
    return 2.0 * config.hidden * (2.0 * static_cast<double>(config.kv_dim()) + others);
  }
};

// What a codec's decoders compute in, one call after the other: each call's work comes behind that of the one before.
struct DecoderMemory {
  Buffer h;  // where u has directions of H: H itself, the model's compute type [PaddedRows(max_rows), hidden]
  std::unique_ptr<StagingRing> planes;  // of a frame, decoded on the host
  Buffer wire;                          // the same on the device
  // The model's compute type [PaddedRows(max_rows), BiasColumns + rank], zeros but for the ones at first: the inputs u of a format
  // without side information. With it u is each decoder's own, and begins with these behind H.
  Buffer latents;
  int64_t rank = 0;   // padded, of the group that has most
  int64_t width = 0;  // of the widest MLP
  Buffer hidden;      // hidden_type [PaddedRows(max_rows), width]
  DType hidden_type = DType::kF32;
  Buffer active;  // the compute type [PaddedRows(max_rows), BiasColumns + width]: hidden after its activation
  Buffer outputs;  // output_type [PaddedRows(max_rows), outputs]
  DType output_type = DType::kF32;
  int64_t max_rows = 0;  // decoded at a time
};

// Pages round K and V anyway, and bf16 is fewer bytes of memory, or lets more rows stay in a cache. But a sum of two products is
// rounded once, at its end.
DType OutputType(const Transformer& model, const std::vector<DecoderGroup>& groups) {
  const bool sums = std::any_of(groups.begin(), groups.end(), [](const DecoderGroup& group) {
    return group.linear.w != nullptr && group.width > 0;
  });
  const bool narrow = model.device()->ops().KeepsNarrow() || model.device()->cache_bytes() > 0;
  return sums || !narrow ? DType::kF32 : model.options().compute;
}

// The planes of a frame of `tokens` tokens: of a cut kEmbedded payload codes may take two bytes that had one.
size_t MostPlaneBytes(const DecoderGroup& group, LatentPacking packing, int64_t tokens) {
  return PlaneBytes(group.grid.bits, packing, tokens) * (packing == LatentPacking::kEmbedded ? 2 : 1);
}

absl::StatusOr<DecoderMemory> MakeDecoderMemory(const Transformer& model, LatentPacking packing,
                                                const SideInputs& side,
                                                const std::vector<DecoderGroup>& groups) {
  DecoderMemory work;
  int64_t outputs = 0;
  size_t plane_bytes = 0;
  for (const DecoderGroup& group : groups) {
    work.rank = std::max(work.rank, PaddedColumns(group.shape.rank));
    work.width = std::max(work.width, group.width);
    outputs = std::max(outputs, group.outputs);
    plane_bytes = std::max(plane_bytes, MostPlaneBytes(group, packing, model.options().max_rows));
  }
  work.hidden_type = model.device()->ops().KeepsNarrow() ? model.options().compute : DType::kF32;
  work.output_type = OutputType(model, groups);
  work.max_rows = RowsAtATime(model, outputs * static_cast<int64_t>(SizeOf(work.output_type)));
  const int64_t padded = PaddedRows(work.max_rows);
  const bool decodes = packing != LatentPacking::kFixed;
  work.planes = std::make_unique<StagingRing>(model.device(), model.stream(), decodes ? plane_bytes : 0);
  ALUDEL_ASSIGN_OR_RETURN(work.wire, model.device()->Allocate(plane_bytes));
  ALUDEL_ASSIGN_OR_RETURN(work.latents, AllocateWithOnes(model, PaddedRows(model.options().max_rows),
                                                         BiasColumns(model) + work.rank, 0));
  if (side.directions != nullptr) {
    const int64_t rows = PaddedRows(model.options().max_rows);
    ALUDEL_ASSIGN_OR_RETURN(
        work.h, AllocateZeroed(model, rows * model.config().hidden * SizeOf(model.options().compute)));
  }
  ALUDEL_ASSIGN_OR_RETURN(work.hidden, AllocateZeroed(model, padded * work.width * SizeOf(work.hidden_type)));
  ALUDEL_ASSIGN_OR_RETURN(work.active, AllocateWithOnes(model, padded, BiasColumns(model) + work.width, 0));
  ALUDEL_ASSIGN_OR_RETURN(work.outputs, AllocateZeroed(model, padded * outputs * SizeOf(work.output_type)));
  return work;
}

// The group that a frame holds whole.
absl::StatusOr<const DecoderGroup*> FindGroup(const std::vector<DecoderGroup>& groups,
                                              const FrameCoverage& coverage) {
  for (const DecoderGroup& group : groups) {
    if (group.shape.first_layer == coverage.first_layer && group.shape.layers == coverage.layers) {
      return &group;
    }
  }
  return absl::DataLossError(absl::StrFormat("frame holds layers [%d, %d), which are no group of its format",
                                             coverage.first_layer, coverage.first_layer + coverage.layers));
}

// Codes of a frame on the host.
struct OpenedCodes : OpenedPayload {
  std::vector<uint8_t> planes;
  PlaneScale scale;
};

// The codes in a payload, in `room` where they are not the payload's own bytes. DataLoss where it holds none; OutOfRange where they
// are not like those that calibration saw, if that is to be asked.
absl::StatusOr<OpenedPlanes> OpenCodes(const AludelShape& shape, const std::vector<DecoderGroup>& groups,
                                       const DecoderGroup& group, const FrameCoverage& coverage,
                                       absl::Span<const uint8_t> payload, bool check_range,
                                       std::vector<uint8_t>* room) {
  absl::StatusOr<OpenedPlanes> opened =
      OpenPlanes(payload, group.grid, shape.packing, group.coder.get(), coverage.tokens, room);
  if (!opened.ok()) {
    return absl::DataLossError(
        absl::StrFormat("frame of layer %d: %s", coverage.first_layer, opened.status().message()));
  }
  // The codes of a cut frame say too little.
  const bool cut = shape.planes > 0 && shape.planes < group.grid.planes;
  if (check_range && shape.range.has_value() && !cut) {
    ALUDEL_RETURN_IF_ERROR(
        CheckCodeRange(shape, static_cast<size_t>(&group - groups.data()),
                       CountCodes(opened->bytes, group.grid.bits, shape.packing, coverage.tokens)));
  }
  return opened;
}

class AludelDecoder : public KvDecoder {
 public:
  AludelDecoder(const Transformer& model, const AludelShape& shape, const SideInputs& side,
                const std::vector<DecoderGroup>& groups, int base_planes, DecoderMemory* work)
      : model_(model), shape_(shape), side_(side), groups_(groups), work_(*work), ones_(BiasColumns(model)) {
    if (base_planes == 0) return;
    for (const DecoderGroup& group : groups) upgrades_.emplace_back(base_planes, group.grid.planes);
  }

  absl::Status Begin(const KvTarget& target) override {
    ALUDEL_CHECK(target.model == &model_);
    if (!shape_.has_side()) return absl::OkStatus();
    const int64_t max_rows = model_.options().max_rows;
    // Products over the last tokens take rows behind them along.
    const size_t bytes = PaddedRows(target.tokens + PaddedRows(1)) * stride() * element();
    ALUDEL_ASSIGN_OR_RETURN(inputs_, model_.device()->Allocate(bytes));
    for (int64_t begin = 0; begin < target.tokens; begin += max_rows) {
      BatchItem item;
      item.ids = target.prompt.subspan(begin, std::min(max_rows, target.tokens - begin));
      item.position = begin;
      item.blocks = target.blocks;
      item.adapter = target.adapter;
      const auto rows = static_cast<int64_t>(item.ids.size());
      const TensorView u = Inputs(begin, rows);
      const int64_t cols = ones_ + work_.rank;
      const TensorView latents{work_.latents.data(), u.dtype, rows, cols, cols};
      model_.device()->ops().Convert(latents, u.Cols(side(), cols), model_.stream());
      const TensorView h = side_.directions == nullptr ? u.Cols(0, side()) : H(rows);
      ALUDEL_RETURN_IF_ERROR(
          target.model->ForwardShallow(absl::MakeSpan(&item, 1), shape_.recomputed_layers, *target.pool, h));
      if (side_.directions == nullptr) continue;
      const TensorView s =
          Inputs(begin, PaddedRows(rows)).Cols(0, side());  // what more it writes others overwrite
      model_.device()->ops().Gemm(H(PaddedRows(rows)), *side_.directions, /*bias=*/nullptr,
                                  /*accumulate=*/false, s, model_.stream());
    }
    return absl::OkStatus();
  }

  absl::Status Apply(const FrameCoverage& coverage, absl::Span<const uint8_t> payload,
                     const KvTarget& target) override {
    ALUDEL_ASSIGN_OR_RETURN(const DecoderGroup* group, GroupOf(coverage, target));
    std::vector<uint8_t> joined;
    if (!upgrades_.empty()) {
      PlaneUpgrades& upgrades = upgrades_[static_cast<size_t>(group - groups_.data())];
      if (coverage.plane == 0) {
        ALUDEL_RETURN_IF_ERROR(upgrades.AddBase(coverage, payload));
      } else {
        ALUDEL_ASSIGN_OR_RETURN(joined, upgrades.Join(coverage, payload));
        payload = joined;
      }
    }
    std::vector<uint8_t>& room =
        work_.planes->Next(HasHostPlanes() ? MostPlaneBytes(*group, shape_.packing, coverage.tokens) : 0);
    // Of a frame in two parts the second would come too late to fail a prompt whose answer has begun.
    ALUDEL_ASSIGN_OR_RETURN(const OpenedPlanes planes, OpenCodes(shape_, groups_, *group, coverage, payload,
                                                                 /*check_range=*/upgrades_.empty(), &room));
    return Reconstruct(*group, coverage, planes.bytes, planes.scale, target);
  }

  absl::Status ApplyOpened(const FrameCoverage& coverage, const OpenedPayload& opened,
                           const KvTarget& target) override {
    ALUDEL_ASSIGN_OR_RETURN(const DecoderGroup* group, GroupOf(coverage, target));
    const auto& codes = static_cast<const OpenedCodes&>(opened);
    std::vector<uint8_t>& room = work_.planes->Next(codes.planes.size());
    room.assign(codes.planes.begin(), codes.planes.end());
    return Reconstruct(*group, coverage, room, codes.scale, target);
  }

 private:
  // Enqueues it. What the packing has decoded lies in the staging ring's slot.
  absl::Status Reconstruct(const DecoderGroup& group, const FrameCoverage& coverage,
                           absl::Span<const uint8_t> planes, const PlaneScale& scale,
                           const KvTarget& target) {
    Device& device = *model_.device();
    if (work_.wire.size() < planes.size()) {
      ALUDEL_ASSIGN_OR_RETURN(work_.wire, device.Allocate(planes.size()));
    }
    device.CopyToDevice(work_.wire.data(), planes.data(), planes.size(), model_.stream());
    if (HasHostPlanes()) work_.planes->Enqueued();
    const std::vector<LatentPlane> layout = PlanesOf(scale.bits, shape_.packing, coverage.tokens);
    for (int64_t begin = 0; begin < coverage.tokens; begin += work_.max_rows) {
      const int64_t rows = std::min<int64_t>(work_.max_rows, coverage.tokens - begin);
      const int64_t position = coverage.token_begin + begin;
      const TensorView u = Inputs(position, rows);
      device.ops().UnpackLatents(work_.wire.as<uint8_t>(), layout, begin, scale.step,
                                 u.Cols(side() + ones_, group.shape.rank), model_.stream());
      const TensorView kv = Decode(group, u.Cols(0, group.inputs + ones_));
      target.model->WriteKvLayers(group.shape.first_layer, position, target.blocks, kv, *target.pool);
    }
    return Enqueued(device, model_.stream());
  }

  // The group that a frame holds whole, after every check of its coverage.
  absl::StatusOr<const DecoderGroup*> GroupOf(const FrameCoverage& coverage, const KvTarget& target) const {
    FrameCoverage one_layer = coverage;
    one_layer.layers = 1;
    if (!upgrades_.empty()) one_layer.plane = 0;  // PlaneUpgrades asks for its own
    ALUDEL_RETURN_IF_ERROR(CheckLayerFrame(one_layer, model_.config().layers, target));
    return FindGroup(groups_, coverage);
  }

  size_t element() const { return SizeOf(model_.options().compute); }
  bool HasHostPlanes() const { return shape_.packing != LatentPacking::kFixed; }
  // Columns of u before those of biases and the latents, and all.
  int64_t side() const { return side_.columns; }
  int64_t stride() const { return side() + ones_ + work_.rank; }

  TensorView H(int64_t rows) const {
    const int64_t hidden = model_.config().hidden;
    return {work_.h.data(), model_.options().compute, rows, hidden, hidden};
  }

  // u of tokens [position, position + rows): what they have of H, ones for biases, then latents of the group that is being decoded.
  TensorView Inputs(int64_t position, int64_t rows) const {
    char* const first =
        shape_.has_side() ? inputs_.as<char>() + position * stride() * element() : work_.latents.as<char>();
    return {first, model_.options().compute, rows, stride(), stride()};
  }

  // K and V of the group's layers side by side.
  TensorView Decode(const DecoderGroup& group, const TensorView& u) {
    const bool direct = group.linear.w != nullptr;
    TensorView kv;
    if (direct) kv = Multiply(u, group.linear, /*accumulate=*/false, work_.outputs, work_.output_type);
    if (group.width == 0) return kv;
    const TensorView hidden =
        Multiply(u, group.hidden, /*accumulate=*/false, work_.hidden, work_.hidden_type);
    // The ones stay where they are, whichever group it is.
    const int64_t stride = ones_ > 0 ? ones_ + work_.width : group.width;
    const TensorView active{work_.active.data(), model_.options().compute, hidden.rows, ones_ + group.width,
                            stride};
    model_.device()->ops().Silu(hidden, active.Cols(ones_, group.width), model_.stream());
    return Multiply(active, group.out, direct, work_.outputs, work_.output_type);
  }

  TensorView Multiply(const TensorView& x, const Affine& affine, bool accumulate, const Buffer& to,
                      DType type) {
    return MultiplyPadded(model_, x, *affine.w, affine.added(), accumulate, to.data(), type);
  }

  const Transformer& model_;
  const AludelShape& shape_;
  const SideInputs& side_;
  const std::vector<DecoderGroup>& groups_;
  DecoderMemory& work_;
  const int64_t ones_;                   // columns of biases
  std::vector<PlaneUpgrades> upgrades_;  // [groups]; none where frames come in one part
  Buffer
      inputs_;  // with side information u of all tokens up to the last that is handed over, rows of stride()
};

double FlopsPerToken(const SideInputs& side, const std::vector<DecoderGroup>& groups,
                     const ModelConfig& config) {
  double flops = side.FlopsPerToken(config);
  for (const DecoderGroup& group : groups) flops += group.FlopsPerToken();
  return flops;
}

class AludelDecoderFactory : public DecoderFactory, public PayloadOpener {
 public:
  AludelDecoderFactory(CodecSpec spec, AludelShape shape, SideInputs side, std::vector<DecoderGroup> groups,
                       DecoderMemory work, const Transformer& model)
      : DecoderFactory(std::move(spec), FlopsPerToken(side, groups, model.config())),
        shape_(std::move(shape)),
        side_(std::move(side)),
        groups_(std::move(groups)),
        work_(std::make_unique<DecoderMemory>(std::move(work))),
        model_(model) {}

  absl::StatusOr<std::unique_ptr<KvDecoder>> NewDecoder() const override {
    return std::make_unique<AludelDecoder>(model_, shape_, side_, groups_, spec_.base_planes, work_.get());
  }

  // Pictures take many times what rANS does; and beside a device whatever is decoded keeps the thread that feeds it. The parts of a
  // frame are joined by the decoder that has its base.
  const PayloadOpener* opener() const override {
    const bool beside_device =
        dynamic_cast<StreamMarks*>(model_.device()) != nullptr && shape_.packing != LatentPacking::kFixed;
    const bool slow = shape_.packing == LatentPacking::kVideo || beside_device;
    return slow && spec_.base_planes == 0 ? this : nullptr;
  }
  absl::StatusOr<std::unique_ptr<OpenedPayload>> Open(const FrameCoverage& coverage,
                                                      absl::Span<const uint8_t> payload) const override {
    ALUDEL_ASSIGN_OR_RETURN(const DecoderGroup* const group, FindGroup(groups_, coverage));
    auto codes = std::make_unique<OpenedCodes>();
    ALUDEL_ASSIGN_OR_RETURN(OpenedPlanes opened, OpenCodes(shape_, groups_, *group, coverage, payload,
                                                           /*check_range=*/true, &codes->planes));
    codes->scale = std::move(opened.scale);
    return codes;
  }

 private:
  AludelShape shape_;
  const SideInputs side_;
  std::vector<DecoderGroup> groups_;
  const std::unique_ptr<DecoderMemory> work_;  // of all its decoders
  const Transformer& model_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DecoderFactory>> MakeAludelDecoders(
    std::string format, std::string artifact_hash, AludelShape shape, const AludelDecoderWeights& weights,
    const Transformer& model, int base_planes) {
  ALUDEL_CHECK(weights.groups.size() == shape.groups.size());
  SideInputs inputs;
  if (shape.has_side()) inputs.columns = weights.side.rows > 0 ? weights.side.rows : model.config().hidden;
  if (weights.side.rows > 0) {
    ALUDEL_CHECK(shape.has_side() && weights.side.cols == model.config().hidden);
    ALUDEL_ASSIGN_OR_RETURN(inputs.directions, PackFor(model, weights.side));
  }
  const int64_t side = inputs.columns;
  std::vector<DecoderGroup> groups(weights.groups.size());
  for (size_t g = 0; g < groups.size(); ++g) {
    const AludelDecoderGroup& from = weights.groups[g];
    DecoderGroup& group = groups[g];
    group.shape = shape.groups[g];
    group.grid = from.grid;
    ALUDEL_CHECK(base_planes == 0 || base_planes < group.grid.planes);
    // Of frames in two parts the base is read, too, and what is neither is refused before.
    const int planes = base_planes > 0 ? 0 : shape.planes == 0 ? group.grid.planes : shape.planes;
    group.coder = MakeLatentCoder(group.grid, shape.packing, planes);
    group.inputs = side + PaddedColumns(group.shape.rank);
    group.outputs = static_cast<int64_t>(from.bias.size());
    group.width = from.hidden.rows;
    const bool direct = from.linear.rows > 0;
    if (direct) {
      ALUDEL_ASSIGN_OR_RETURN(
          group.linear,
          PackAffine(model, PaddedTo(from.linear, from.linear.rows, group.inputs), from.bias, side));
    }
    if (group.width > 0) {
      ALUDEL_ASSIGN_OR_RETURN(
          group.hidden,
          PackAffine(model, PaddedTo(from.hidden, from.hidden.rows, group.inputs), from.hidden_bias, side));
      ALUDEL_ASSIGN_OR_RETURN(
          group.out, PackAffine(model, from.out, direct ? std::vector<float>() : from.bias, /*at=*/0));
    }
  }
  ALUDEL_ASSIGN_OR_RETURN(DecoderMemory work, MakeDecoderMemory(model, shape.packing, inputs, groups));
  std::vector<LatentGrid> grids;
  for (const DecoderGroup& group : groups) grids.push_back(group.grid);
  if (shape.packing == LatentPacking::kVideo) ALUDEL_RETURN_IF_ERROR(VideoCoder::CheckDecoder(grids));
  return std::make_unique<AludelDecoderFactory>(AludelSpec(std::move(format), std::move(artifact_hash), shape,
                                                           grids, model.config().layers, base_planes),
                                                std::move(shape), std::move(inputs), std::move(groups),
                                                std::move(work), model);
}

}  // namespace aludel
