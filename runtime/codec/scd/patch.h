#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "runtime/codec/scd/projector.h"
#include "runtime/codec/scd/weights.h"

namespace aludel {

// One layer's aligner on the device. Immutable; shared by every decoder of a codec.
class PackedAligner {
 public:
  static absl::StatusOr<PackedAligner> Create(const Transformer& model, const AlignerWeights& weights);

  int64_t width() const { return down_->in_features(); }
  // Floats of scratch that Apply needs for `rows` rows.
  int64_t ScratchFloats(int64_t rows) const { return PaddedRows(rows) * 3 * width(); }

  // h = g(z) for codes z [rows, rank_h]. `scratch` and `h` ([PaddedRows(rows), hidden]) are f32
  // device memory.
  TensorView Apply(const Transformer& model, const TensorView& z, Projector& projector, float* scratch,
                   float* h) const;

 private:
  std::unique_ptr<PackedMatrix> skip_;
  std::unique_ptr<PackedMatrix> gate_up_;
  std::unique_ptr<PackedMatrix> down_;
  Buffer bias_;
  Buffer gate_up_bias_;
};

}  // namespace aludel
