#pragma once

#include "kernels/device.h"
#include "kernels/tensor.h"

namespace aludel {

// Operations of fits and training, where a model's need no more than Ops has. The Ops of a device that has them is one of these, too:
// a GPU's. As Ops in all else, but Device::Replay takes no Multiply.
class TrainingOps {
 public:
  // A factor of a product: `matrix` as it lies, or its transpose.
  struct Factor {
    TensorView matrix;
    bool transposed = false;

    int64_t rows() const { return transposed ? matrix.cols : matrix.rows; }
    int64_t cols() const { return transposed ? matrix.rows : matrix.cols; }
  };

  virtual ~TrainingOps() = default;

  // out = a b, or out += a b where `accumulate`. The factors have one type, f32 or bf16; out is f32. Sums in f32; f32 factors stay
  // whole (no TF32). No dimension is 0.
  virtual void Multiply(const Factor& a, const Factor& b, bool accumulate, const TensorView& out,
                        Stream stream) = 0;

  // sums[i, j] += x[i, j] in double. x f32; sums [x.rows, x.cols] without gaps.
  virtual void AddTo(double* sums, const TensorView& x, Stream stream) = 0;
};

}  // namespace aludel
