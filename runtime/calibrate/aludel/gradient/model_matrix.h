#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cpu/host_memory.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

namespace aludel {

// A matrix of a model's weights for passes forward and backward on the host, W [rows, cols], row-major, f32
// or bf16. Products with bf16 weights round the other side, too, where the CPU multiplies bf16 (see Bgemm). In huge pages:
// a pass reads it end to end for a few rows.
class ModelMatrix {
 public:
  ModelMatrix() = default;
  explicit ModelMatrix(DType type) : type_(type) {}

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  // Makes room for as much in an empty one. False where there is no memory.
  bool Reserve(int64_t rows, int64_t cols);
  // Adds `count` rows below the others, for which there is room. What is full lies on the products' device, too (see
  // KeepForProducts).
  void Append(const float* values, int64_t count);
  void ReadRow(int64_t row, float* out) const;
  // out [count, rows] = beta out + x W^T, for x [count, cols] and beta 0 or 1.
  void Multiply(const float* x, int64_t count, float beta, float* out) const;
  // dx [count, cols] = dy W, for dy [count, rows].
  void MultiplyBack(const float* dy, int64_t count, float* dx) const;

 private:
  float* wide() const { return static_cast<float*>(values_.get()); }
  Bf16* narrow() const { return static_cast<Bf16*>(values_.get()); }

  DType type_ = DType::kF32;
  int64_t rows_ = 0;
  int64_t room_ = 0;  // rows
  int64_t cols_ = 0;
  HostMemory values_;  // [rows, cols]
  std::shared_ptr<const Buffer> kept_;
};

}  // namespace aludel
