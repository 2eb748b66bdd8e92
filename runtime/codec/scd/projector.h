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

// Matrix products make one primitive per row count; a codec rounds its counts up so that they stay few.
constexpr int64_t PaddedRows(int64_t rows) { return (rows + 15) / 16 * 16; }

// Products are fastest over rows that are whole pieces of 16 bytes in either type; what a format leaves free
// is rounded up.
constexpr int64_t PaddedColumns(int64_t columns) { return (columns + 7) / 8 * 8; }

// A matrix with rows and columns of zeros behind its own.
HostMatrix PaddedTo(HostMatrix matrix, int64_t rows, int64_t cols);

// Rows to take through products at a time, where what lies between the steps of a row takes `row_bytes`: few
// enough to stay in a cache. Fewer than so many would read the weights too often.
int64_t RowsAtATime(const Transformer& model, int64_t row_bytes);

// Packs a host matrix for the device of `model`, in the type the model computes in.
absl::StatusOr<std::unique_ptr<PackedMatrix>> PackFor(const Transformer& model, const HostMatrix& matrix);

// A vector in memory of the device of `model`. From any thread.
absl::StatusOr<Buffer> UploadFor(const Transformer& model, const std::vector<float>& host);
// The same of bytes.
absl::StatusOr<Buffer> UploadFor(const Transformer& model, const void* host, size_t bytes);

// Zeroed memory on the device of `model`. From any thread.
absl::StatusOr<Buffer> AllocateZeroed(const Transformer& model, size_t bytes);

// Projector::Multiply on the model's stream of an x that needs no staging: of the model's compute type, in memory for
// PaddedRows(x.rows) rows.
TensorView MultiplyPadded(const Transformer& model, const TensorView& x, const PackedMatrix& w,
                          const float* bias, bool accumulate, void* out, DType type = DType::kF32);

// Multiplies rows by packed matrices on the model's stream, through one staging buffer in the model's compute
// type. Engine thread only.
class Projector {
 public:
  // For inputs of at most `max_cols` columns and the model's max_rows rows.
  static absl::StatusOr<std::unique_ptr<Projector>> Create(const Transformer& model, int64_t max_cols);

  // out = x w^T + bias, or out += ... where `accumulate`. x of any type, `out` device memory for
  // [PaddedRows(x.rows), w.out_features()] of `type`; rows beyond x.rows hold leftovers. Returns the rows
  // that count.
  TensorView Multiply(const TensorView& x, const PackedMatrix& w, const float* bias, bool accumulate,
                      void* out, DType type = DType::kF32) {
    return Multiply(absl::MakeConstSpan(&x, 1), w, bias, accumulate, out, type);
  }
  // The same of an x whose columns come in parts.
  TensorView Multiply(absl::Span<const TensorView> x, const PackedMatrix& w, const float* bias,
                      bool accumulate, void* out, DType type = DType::kF32) {
    return MultiplyPadded(model_, Stage(x), w, bias, accumulate, out, type);
  }
  // Those columns side by side as MultiplyPadded takes them, until the next call.
  TensorView Stage(absl::Span<const TensorView> x);

 private:
  Projector(const Transformer& model, Buffer staging, int64_t max_cols)
      : model_(model), staging_(std::move(staging)), max_cols_(max_cols) {}

  const Transformer& model_;
  Buffer staging_;  // compute type [PaddedRows(max_rows), max_cols]
  int64_t max_cols_;
};

}  // namespace aludel
