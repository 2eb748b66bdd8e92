#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "runtime/codec/scd/weights.h"
#include "runtime/model/transformer.h"

namespace aludel {

// A decoder's product with a bias, x W^T + b.
//
// Where the device keeps rows narrow (Ops::KeepsNarrow) the results are rounded as they leave the product, and its library adds
// no bias of f32 to those. There b is columns of W, as many terms as make it in the type of W, and x has ones before them
// (AllocateWithOnes): the sums have it in f32, and are rounded once. Elsewhere the product adds it.
struct Affine {
  std::unique_ptr<PackedMatrix> w;  // null: no such product
  Buffer bias;                      // f32 [out]; empty where it is columns of w, and where there is none

  const float* added() const { return bias.as<float>(); }
};

// Columns that stand for a bias on the device of `model`, a whole piece of 16 bytes; 0 where a product adds it.
int64_t BiasColumns(const Transformer& model);

// For x that has BiasColumns behind its first `at` columns. `bias` may be empty: none.
absl::StatusOr<Affine> PackAffine(const Transformer& model, const HostMatrix& w,
                                  const std::vector<float>& bias, int64_t at);

// Memory of the model's compute type [rows, cols], zeros but for the ones in the BiasColumns behind the first `at`.
// Any thread.
absl::StatusOr<Buffer> AllocateWithOnes(const Transformer& model, int64_t rows, int64_t cols, int64_t at);

}  // namespace aludel
