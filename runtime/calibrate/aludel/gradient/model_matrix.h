#pragma once

#include <cstdint>
#include <vector>

#include "kernels/tensor.h"

namespace aludel {

// A matrix of a model's weights for passes forward and backward on the host, W [rows, cols], row-major, f32
// or bf16. Products with bf16 weights round the other side, too, where the CPU multiplies bf16 (see Bgemm).
class ModelMatrix {
 public:
  ModelMatrix() = default;
  explicit ModelMatrix(DType type) : type_(type) {}

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  // Room for as much, so that no copy of it is made on the way.
  void Reserve(int64_t rows, int64_t cols);
  // Adds rows [count, cols] below the others.
  void Append(const float* values, int64_t count, int64_t cols);
  void ReadRow(int64_t row, float* out) const;
  // out [count, rows] = beta out + x W^T, for x [count, cols] and beta 0 or 1.
  void Multiply(const float* x, int64_t count, float beta, float* out) const;
  // dx [count, cols] = dy W, for dy [count, rows].
  void MultiplyBack(const float* dy, int64_t count, float* dx) const;

 private:
  DType type_ = DType::kF32;
  int64_t rows_ = 0;
  int64_t cols_ = 0;
  std::vector<float> wide_;  // [rows, cols], or
  std::vector<Bf16> narrow_;
};

}  // namespace aludel
