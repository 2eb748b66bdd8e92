#include "runtime/codec/scd/projector.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "kernels/check.h"
#include "runtime/model/transformer_options.h"
#include "runtime/status_macros.h"

namespace aludel {

HostMatrix PaddedTo(HostMatrix matrix, int64_t rows, int64_t cols) {
  if (matrix.rows == rows && matrix.cols == cols) return matrix;
  HostMatrix padded = HostMatrix::Zeros(rows, cols);
  for (int64_t i = 0; i < matrix.rows; ++i) std::copy_n(matrix.row(i), matrix.cols, padded.row(i));
  return padded;
}

int64_t RowsAtATime(const Transformer& model, int64_t row_bytes) {
  constexpr int64_t kFewest = 96;
  const bool fit = kFewest * row_bytes <= static_cast<int64_t>(model.device()->cache_bytes() / 2);
  return fit ? std::min(kFewest, model.options().max_rows) : model.options().max_rows;
}

absl::StatusOr<std::unique_ptr<PackedMatrix>> PackFor(const Transformer& model, const HostMatrix& matrix) {
  const TensorView view =
      TensorView::Of(const_cast<float*>(matrix.values.data()), matrix.rows, matrix.cols);  // Pack only reads
  return model.device()->ops().Pack(view, FormatOf(model.options().compute));
}

namespace {

// Codecs are opened on several threads while the model computes on its own stream: on the device's, one at a time.
absl::Status Fill(Device* device, Buffer& to, const void* from) {
  static absl::Mutex mutex(absl::kConstInit);
  absl::MutexLock lock(&mutex);
  device->CopyToDevice(to.data(), from, to.size(), Stream{});
  return device->Synchronize(Stream{});
}

}  // namespace

absl::StatusOr<Buffer> UploadFor(const Transformer& model, const void* host, size_t bytes) {
  ALUDEL_ASSIGN_OR_RETURN(Buffer buffer, model.device()->Allocate(bytes));
  ALUDEL_RETURN_IF_ERROR(Fill(model.device(), buffer, host));
  return buffer;
}

absl::StatusOr<Buffer> UploadFor(const Transformer& model, const std::vector<float>& host) {
  return UploadFor(model, host.data(), host.size() * sizeof(float));
}

absl::StatusOr<Buffer> AllocateZeroed(const Transformer& model, size_t bytes) {
  const std::vector<char> zeros(bytes);
  return UploadFor(model, zeros.data(), bytes);
}

absl::StatusOr<std::unique_ptr<Projector>> Projector::Create(const Transformer& model, int64_t max_cols) {
  const TransformerOptions& options = model.options();
  // Zeroed, because products run over the padding too.
  ALUDEL_ASSIGN_OR_RETURN(Buffer staging, AllocateZeroed(model, PaddedRows(options.max_rows) * max_cols *
                                                                    SizeOf(options.compute)));
  return std::unique_ptr<Projector>(new Projector(model, std::move(staging), max_cols));
}

TensorView Projector::Stage(absl::Span<const TensorView> x) {
  Ops& ops = model_.device()->ops();
  const int64_t rows = x.front().rows;
  int64_t cols = 0;
  for (const TensorView& part : x) cols += part.cols;
  ALUDEL_CHECK(rows <= model_.options().max_rows && cols <= max_cols_);
  const TensorView staged{staging_.data(), model_.options().compute, rows, cols, cols};
  int64_t column = 0;
  for (const TensorView& part : x) {
    ops.Convert(part, staged.Cols(column, part.cols), model_.stream());
    column += part.cols;
  }
  return staged;
}

TensorView MultiplyPadded(const Transformer& model, const TensorView& x, const PackedMatrix& w,
                          const float* bias, bool accumulate, void* out, DType type) {
  ALUDEL_CHECK(x.dtype == model.options().compute && x.cols == w.in_features());
  const int64_t rows = PaddedRows(x.rows);
  const TensorView padded{x.data, x.dtype, rows, x.cols, x.stride};
  const TensorView result{out, type, rows, w.out_features(), w.out_features()};
  model.device()->ops().Gemm(padded, w, bias, accumulate, result, model.stream());
  return result.Rows(0, x.rows);
}

}  // namespace aludel
