#include "runtime/calibrate/aludel/gradient/model_matrix.h"

#include <algorithm>

#include "kernels/check.h"
#include "runtime/calibrate/fit/dense.h"

namespace aludel {

bool ModelMatrix::Reserve(int64_t rows, int64_t cols) {
  ALUDEL_CHECK(rows_ == 0);
  room_ = rows;
  cols_ = cols;
  values_ = AllocateHostMemory(static_cast<size_t>(rows * cols) * SizeOf(type_));
  return values_ != nullptr;
}

void ModelMatrix::Append(const float* values, int64_t count) {
  ALUDEL_CHECK(rows_ + count <= room_);
  const int64_t begin = rows_ * cols_;
  rows_ += count;
  if (type_ == DType::kF32) {
    std::copy_n(values, count * cols_, wide() + begin);
  } else {
    std::transform(values, values + count * cols_, narrow() + begin, ToBf16);
  }
  if (rows_ == room_) kept_ = KeepForProducts(values_.get(), rows_ * cols_ * SizeOf(type_));
}

void ModelMatrix::ReadRow(int64_t row, float* out) const {
  if (type_ == DType::kF32) {
    std::copy_n(wide() + row * cols_, cols_, out);
    return;
  }
  for (int64_t j = 0; j < cols_; ++j) out[j] = ToFloat(narrow()[row * cols_ + j]);
}

void ModelMatrix::Multiply(const float* x, int64_t count, float beta, float* out) const {
  if (type_ == DType::kF32) {
    Sgemm(false, true, count, rows_, cols_, x, cols_, wide(), cols_, beta, out, rows_, kept_.get());
  } else {
    Bgemm(/*transpose_b=*/true, count, rows_, cols_, x, narrow(), beta, out, kept_.get());
  }
}

void ModelMatrix::MultiplyBack(const float* dy, int64_t count, float* dx) const {
  if (type_ == DType::kF32) {
    Sgemm(false, false, count, cols_, rows_, dy, rows_, wide(), cols_, 0.0f, dx, cols_, kept_.get());
  } else {
    Bgemm(/*transpose_b=*/false, count, cols_, rows_, dy, narrow(), 0.0f, dx, kept_.get());
  }
}

}  // namespace aludel
