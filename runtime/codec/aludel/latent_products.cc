#include "runtime/codec/aludel/latent_products.h"

#include <algorithm>
#include <utility>

#include "kernels/check.h"
#include "runtime/codec/scd/projector.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// Columns [begin, begin + count) of a matrix.
HostMatrix Columns(const HostMatrix& matrix, int64_t begin, int64_t count) {
  HostMatrix columns = HostMatrix::Zeros(matrix.rows, count);
  for (int64_t i = 0; i < matrix.rows; ++i) std::copy_n(matrix.row(i) + begin, count, columns.row(i));
  return columns;
}

int64_t LayerColumns(const Transformer& model) { return 2 * model.config().kv_dim(); }

// Of a group's latents.
int64_t Stride(const AludelGroup& group) { return PaddedColumns(group.rank); }

absl::StatusOr<Buffer> UploadOffset(const Transformer& model, const AludelGroup& group,
                                    std::vector<float> offset) {
  offset.resize(Stride(group));
  return UploadFor(model, offset);
}

struct SummedGroup {
  AludelGroup shape;
  std::vector<std::unique_ptr<PackedMatrix>> kv;  // [layers] columns of K and V
  std::unique_ptr<PackedMatrix> side;             // null without side information
  Buffer offset;
};

class SummedLatents final : public LatentProducts {
 public:
  SummedLatents(const Transformer& model, const std::vector<SummedGroup>& groups, Projector& projector,
                std::vector<Buffer> latents)
      : model_(model), groups_(groups), projector_(projector), latents_(std::move(latents)) {}

  void AddSide(const LayerSlice& slice) override {
    const TensorView h = projector_.Stage(absl::MakeConstSpan(&slice.h, 1));
    for (size_t g = 0; g < groups_.size(); ++g) {
      MultiplyPadded(model_, h, *groups_[g].side, groups_[g].offset.as<float>(), /*accumulate=*/false,
                     latents_[g].data());
    }
  }

  void AddLayer(const LayerSlice& slice, size_t g, int at) override {
    const SummedGroup& group = groups_[g];
    const bool started = at > 0 || group.side != nullptr;
    const int64_t step = RowsAtATime(model_, LayerColumns(model_) * SizeOf(model_.options().compute));
    for (int64_t begin = 0; begin < slice.tokens(); begin += step) {
      const int64_t rows = std::min(step, slice.tokens() - begin);
      const TensorView kv[] = {slice.k.Rows(begin, rows), slice.v.Rows(begin, rows)};
      projector_.Multiply(kv, *group.kv[at], started ? nullptr : group.offset.as<float>(), started,
                          latents_[g].as<float>() + begin * Stride(group.shape));
    }
  }

  TensorView Latents(size_t g, int64_t tokens) const override {
    const AludelGroup& group = groups_[g].shape;
    return TensorView::Of(latents_[g].as<float>(), tokens, Stride(group)).Cols(0, group.rank);
  }

  TensorView KvRows(int) const override { return {}; }

 private:
  const Transformer& model_;
  const std::vector<SummedGroup>& groups_;
  Projector& projector_;
  std::vector<Buffer> latents_;  // per group f32 [PaddedRows(max_rows), its stride]
};

class SummedFactory final : public LatentProductsFactory {
 public:
  static absl::StatusOr<std::unique_ptr<SummedFactory>> Create(const Transformer& model,
                                                               const AludelShape& shape,
                                                               const AludelEncoderWeights& weights) {
    const int64_t hidden = model.config().hidden, columns = LayerColumns(model);
    std::vector<SummedGroup> groups(weights.size());
    for (size_t g = 0; g < weights.size(); ++g) {
      SummedGroup& group = groups[g];
      group.shape = shape.groups[g];
      for (int i = 0; i < group.shape.layers; ++i) {
        HostMatrix layer = Columns(weights[g].matrix, i * columns, columns);
        ALUDEL_ASSIGN_OR_RETURN(auto kv,
                                PackFor(model, PaddedTo(std::move(layer), Stride(group.shape), columns)));
        group.kv.push_back(std::move(kv));
      }
      if (shape.has_side()) {
        ALUDEL_ASSIGN_OR_RETURN(group.side,
                                PackFor(model, PaddedTo(weights[g].side, Stride(group.shape), hidden)));
      }
      ALUDEL_ASSIGN_OR_RETURN(group.offset, UploadOffset(model, group.shape, weights[g].offset));
    }
    ALUDEL_ASSIGN_OR_RETURN(auto projector, Projector::Create(model, std::max(hidden, columns)));
    return std::unique_ptr<SummedFactory>(new SummedFactory(model, std::move(groups), std::move(projector)));
  }

  absl::StatusOr<std::unique_ptr<LatentProducts>> New() const override {
    std::vector<Buffer> latents;
    for (const SummedGroup& group : groups_) {
      // The first product of every slice writes its padding, too.
      const int64_t floats = PaddedRows(model_.options().max_rows) * Stride(group.shape);
      ALUDEL_ASSIGN_OR_RETURN(Buffer buffer, model_.device()->Allocate(floats * sizeof(float)));
      latents.push_back(std::move(buffer));
    }
    return std::make_unique<SummedLatents>(model_, groups_, *projector_, std::move(latents));
  }

 private:
  SummedFactory(const Transformer& model, std::vector<SummedGroup> groups,
                std::unique_ptr<Projector> projector)
      : model_(model), groups_(std::move(groups)), projector_(std::move(projector)) {}

  const Transformer& model_;
  const std::vector<SummedGroup> groups_;
  const std::unique_ptr<Projector> projector_;
};

struct GatheredGroup {
  AludelGroup shape;
  std::unique_ptr<PackedMatrix> all;  // [stride, hidden where there is side information + layers * 2 kv_dim]
  Buffer offset;
};

// What all encoders of a codec gather in: a token has the row that it has in the step, so that sequences of one step do not
// meet, and steps follow each other on the stream.
struct GatheredMemory {
  Buffer rows;  // the model's compute type [PaddedRows(max_rows), side + most layers of a group * 2 kv_dim]
  Buffer latents;    // f32 [max_rows, most latents of a group]
  int64_t side = 0;  // columns of f_A
  int64_t columns = 0;
};

class GatheredLatents final : public LatentProducts {
 public:
  GatheredLatents(const Transformer& model, const std::vector<GatheredGroup>& groups,
                  const GatheredMemory& memory)
      : model_(model), groups_(groups), memory_(memory) {}

  void AddSide(const LayerSlice& slice) override {
    const TensorView to = All().Rows(slice.row, slice.tokens()).Cols(0, memory_.side);
    model_.device()->ops().Convert(slice.h, to, model_.stream());
  }

  void AddLayer(const LayerSlice& slice, size_t g, int at) override {
    const GatheredGroup& group = groups_[g];
    const int64_t kv_dim = model_.config().kv_dim();
    const TensorView to = Layer(at).Rows(slice.row, slice.tokens());
    Ops& ops = model_.device()->ops();
    if (slice.k.data != to.data) {  // others wanted them elsewhere, or they are of another type
      ops.Convert(slice.k, to.Cols(0, kv_dim), model_.stream());
      ops.Convert(slice.v, to.Cols(kv_dim, kv_dim), model_.stream());
    }
    if (at + 1 < group.shape.layers) return;
    const TensorView x = All().Rows(slice.row, slice.tokens()).Cols(0, group.all->in_features());
    const TensorView z =
        TensorView::Of(memory_.latents.as<float>(), slice.tokens(), group.all->out_features());
    ops.Gemm(x, *group.all, group.offset.as<float>(), /*accumulate=*/false, z, model_.stream());
  }

  TensorView Latents(size_t g, int64_t tokens) const override {
    const AludelGroup& group = groups_[g].shape;
    return TensorView::Of(memory_.latents.as<float>(), tokens, Stride(group)).Cols(0, group.rank);
  }

  TensorView KvRows(int at) const override {
    return model_.row_type() == model_.options().compute ? Layer(at) : TensorView{};
  }

 private:
  // Of a whole step.
  TensorView All() const {
    return {memory_.rows.data(), model_.options().compute, PaddedRows(model_.options().max_rows),
            memory_.columns, memory_.columns};
  }
  // K and V of layer `at` of a group.
  TensorView Layer(int at) const {
    const int64_t columns = LayerColumns(model_);
    return All().Cols(memory_.side + at * columns, columns);
  }

  const Transformer& model_;
  const std::vector<GatheredGroup>& groups_;
  const GatheredMemory& memory_;
};

class GatheredFactory final : public LatentProductsFactory {
 public:
  static absl::StatusOr<std::unique_ptr<GatheredFactory>> Create(const Transformer& model,
                                                                 const AludelShape& shape,
                                                                 const AludelEncoderWeights& weights) {
    GatheredMemory memory;
    memory.side = shape.has_side() ? model.config().hidden : 0;
    std::vector<GatheredGroup> groups(weights.size());
    int64_t stride = 0;
    for (size_t g = 0; g < weights.size(); ++g) {
      GatheredGroup& group = groups[g];
      group.shape = shape.groups[g];
      ALUDEL_ASSIGN_OR_RETURN(group.all,
                              PackFor(model, Beside(weights[g], memory.side, Stride(group.shape))));
      ALUDEL_ASSIGN_OR_RETURN(group.offset, UploadOffset(model, group.shape, weights[g].offset));
      memory.columns = std::max(memory.columns, group.all->in_features());
      stride = std::max(stride, Stride(group.shape));
    }
    const int64_t max_rows = model.options().max_rows;
    ALUDEL_ASSIGN_OR_RETURN(memory.rows, model.device()->Allocate(PaddedRows(max_rows) * memory.columns *
                                                                  SizeOf(model.options().compute)));
    ALUDEL_ASSIGN_OR_RETURN(memory.latents, model.device()->Allocate(max_rows * stride * sizeof(float)));
    return std::unique_ptr<GatheredFactory>(new GatheredFactory(model, std::move(groups), std::move(memory)));
  }

  absl::StatusOr<std::unique_ptr<LatentProducts>> New() const override {
    return std::make_unique<GatheredLatents>(model_, groups_, memory_);
  }

 private:
  GatheredFactory(const Transformer& model, std::vector<GatheredGroup> groups, GatheredMemory memory)
      : model_(model), groups_(std::move(groups)), memory_(std::move(memory)) {}

  // [F | E], zeros behind its rows.
  static HostMatrix Beside(const AludelEncoderGroup& group, int64_t side, int64_t rows) {
    HostMatrix all = HostMatrix::Zeros(rows, side + group.matrix.cols);
    for (int64_t i = 0; i < group.matrix.rows; ++i) {
      if (side > 0) std::copy_n(group.side.row(i), side, all.row(i));
      std::copy_n(group.matrix.row(i), group.matrix.cols, all.row(i) + side);
    }
    return all;
  }

  const Transformer& model_;
  const std::vector<GatheredGroup> groups_;
  const GatheredMemory memory_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LatentProductsFactory>> MakeLatentProducts(
    const Transformer& model, const AludelShape& shape, const AludelEncoderWeights& weights) {
  ALUDEL_CHECK(weights.size() == shape.groups.size());
  if (model.device()->ops().KeepsNarrow()) return GatheredFactory::Create(model, shape, weights);
  return SummedFactory::Create(model, shape, weights);
}

}  // namespace aludel
