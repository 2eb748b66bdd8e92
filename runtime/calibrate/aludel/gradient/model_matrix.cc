#include "runtime/calibrate/aludel/gradient/model_matrix.h"

#include <algorithm>

#include "kernels/check.h"
#include "runtime/calibrate/fit/dense.h"

namespace aludel {

void ModelMatrix::Reserve(int64_t rows, int64_t cols) {
  if (type_ == DType::kF32) {
    wide_.reserve(rows * cols);
  } else {
    narrow_.reserve(rows * cols);
  }
}

void ModelMatrix::Append(const float* values, int64_t count, int64_t cols) {
  ALUDEL_CHECK(rows_ == 0 || cols == cols_);
  cols_ = cols;
  rows_ += count;
  if (type_ == DType::kF32) {
    wide_.insert(wide_.end(), values, values + count * cols);
    return;
  }
  const auto begin = static_cast<int64_t>(narrow_.size());
  narrow_.resize(static_cast<size_t>(begin + count * cols));
  for (int64_t i = 0; i < count * cols; ++i) narrow_[begin + i] = ToBf16(values[i]);
}

void ModelMatrix::ReadRow(int64_t row, float* out) const {
  if (type_ == DType::kF32) {
    std::copy_n(wide_.data() + row * cols_, cols_, out);
    return;
  }
  for (int64_t j = 0; j < cols_; ++j) out[j] = ToFloat(narrow_[row * cols_ + j]);
}

void ModelMatrix::Multiply(const float* x, int64_t count, float beta, float* out) const {
  if (type_ == DType::kF32) {
    Sgemm(false, true, count, rows_, cols_, x, cols_, wide_.data(), cols_, beta, out, rows_);
  } else {
    Bgemm(/*transpose_b=*/true, count, rows_, cols_, x, narrow_.data(), beta, out);
  }
}

void ModelMatrix::MultiplyBack(const float* dy, int64_t count, float* dx) const {
  if (type_ == DType::kF32) {
    Sgemm(false, false, count, cols_, rows_, dy, rows_, wide_.data(), cols_, 0.0f, dx, cols_);
  } else {
    Bgemm(/*transpose_b=*/false, count, cols_, rows_, dy, narrow_.data(), 0.0f, dx);
  }
}

}  // namespace aludel
