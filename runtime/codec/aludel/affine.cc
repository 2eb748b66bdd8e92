#include "runtime/codec/aludel/affine.h"

#include <algorithm>

#include "kernels/check.h"
#include "runtime/codec/scd/projector.h"
#include "runtime/status_macros.h"

namespace aludel {
namespace {

// A number of 24 bits is three of bf16.
constexpr int64_t kBiasTerms = 3;
constexpr int64_t kBiasPiece = 8;

// Terms of `bias` that a matrix of `type` holds, exactly.
void SplitBias(float bias, DType type, float* terms) {
  for (int64_t i = 0; i < kBiasTerms; ++i) {
    terms[i] = type == DType::kF32 ? bias : RoundToBf16(bias);
    bias -= terms[i];
  }
}

}  // namespace

int64_t BiasColumns(const Transformer& model) { return model.device()->ops().KeepsNarrow() ? kBiasPiece : 0; }

absl::StatusOr<Affine> PackAffine(const Transformer& model, const HostMatrix& w,
                                  const std::vector<float>& bias, int64_t at) {
  ALUDEL_CHECK(at >= 0 && at <= w.cols && (bias.empty() || static_cast<int64_t>(bias.size()) == w.rows));
  Affine affine;
  const int64_t columns = BiasColumns(model);
  if (columns == 0) {
    ALUDEL_ASSIGN_OR_RETURN(affine.w, PackFor(model, w));
    if (bias.empty()) return affine;
    ALUDEL_ASSIGN_OR_RETURN(affine.bias, UploadFor(model, bias));
    return affine;
  }
  HostMatrix wide = HostMatrix::Zeros(w.rows, w.cols + columns);
  for (int64_t i = 0; i < w.rows; ++i) {
    std::copy_n(w.row(i), at, wide.row(i));
    if (!bias.empty()) SplitBias(bias[i], model.options().compute, wide.row(i) + at);
    std::copy_n(w.row(i) + at, w.cols - at, wide.row(i) + at + columns);
  }
  ALUDEL_ASSIGN_OR_RETURN(affine.w, PackFor(model, wide));
  return affine;
}

absl::StatusOr<Buffer> AllocateWithOnes(const Transformer& model, int64_t rows, int64_t cols, int64_t at) {
  ALUDEL_CHECK(at + BiasColumns(model) <= cols);
  const auto fill = [&](auto one) -> absl::StatusOr<Buffer> {
    std::vector<decltype(one)> host(rows * cols);
    for (int64_t r = 0; r < rows && BiasColumns(model) > 0; ++r) {
      std::fill_n(host.begin() + r * cols + at, kBiasTerms, one);
    }
    return UploadFor(model, host.data(), host.size() * sizeof(one));
  };
  return model.options().compute == DType::kF32 ? fill(1.0f) : fill(ToBf16(1.0f));
}

}  // namespace aludel
