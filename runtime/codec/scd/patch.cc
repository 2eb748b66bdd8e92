#include "runtime/codec/scd/patch.h"

#include "runtime/status_macros.h"

namespace aludel {
absl::StatusOr<PackedAligner> PackedAligner::Create(const Transformer& model, const AlignerWeights& weights) {
  PackedAligner aligner;
  ALUDEL_ASSIGN_OR_RETURN(aligner.skip_, PackFor(model, weights.skip));
  ALUDEL_ASSIGN_OR_RETURN(aligner.gate_up_, PackFor(model, weights.gate_up));
  ALUDEL_ASSIGN_OR_RETURN(aligner.down_, PackFor(model, weights.down));
  ALUDEL_ASSIGN_OR_RETURN(aligner.bias_, UploadFor(model, weights.bias));
  ALUDEL_ASSIGN_OR_RETURN(aligner.gate_up_bias_, UploadFor(model, weights.gate_up_bias));
  return aligner;
}

TensorView PackedAligner::Apply(const Transformer& model, const TensorView& z, Projector& projector,
                                float* scratch, float* h) const {
  const TensorView gate_up =
      projector.Multiply(z, *gate_up_, gate_up_bias_.as<float>(), /*accumulate=*/false, scratch);
  const TensorView activated = TensorView::Of(scratch + PaddedRows(z.rows) * 2 * width(), z.rows, width());
  model.device()->ops().SiluMul(gate_up, activated, model.stream());
  projector.Multiply(z, *skip_, bias_.as<float>(), /*accumulate=*/false, h);
  return projector.Multiply(activated, *down_, nullptr, /*accumulate=*/true, h);
}

}  // namespace aludel
