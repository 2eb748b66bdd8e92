#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/tensor.h"
#include "runtime/model/weights/quantization_config.h"
#include "runtime/model/weights/safetensors.h"
#include "runtime/model/weights/weight_stream.h"

namespace aludel {

// One weight matrix W [rows, cols] = [outputs, inputs] as a checkpoint stores it, plainly or quantized, with
// the update of the files' adapter; every tensor that it is made of was checked when it was opened. Immutable and thread-safe. Lives no longer than
// the ModelFiles it came from.
class StoredMatrix {
 public:
  // Finds MODULE.weight, or the tensors that `quantization` stores in its place. Errors name the tensor, what
  // was found and what was expected.
  static absl::StatusOr<std::unique_ptr<StoredMatrix>> Open(const ModelFiles& files,
                                                            const QuantizationConfig& quantization,
                                                            const std::string& module, int64_t rows,
                                                            int64_t cols);
  virtual ~StoredMatrix() = default;

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  const std::vector<const SafetensorsEntry*>& tensors() const { return tensors_; }
  // What Read(begin, end) looks at.
  virtual std::vector<TensorBytes> BytesOf(int64_t begin, int64_t end) const = 0;

  // Rows [begin, end) as f32 into out [end - begin, cols].
  virtual void Read(int64_t begin, int64_t end, float* out) const = 0;

  // The whole matrix where it lies in the file, if it lies there row by row in a type of TensorView and
  // aligned for it; otherwise a view without data.
  virtual TensorView InPlace() const = 0;

  // Codes of rows [begin, end) where they lie in the file, and scales[row - begin] of each, if the matrix is stored
  // as E4M3 (kernels/e4m3.h) with a scale for each row or for all; otherwise null.
  virtual const uint8_t* Fp8Codes(int64_t begin, int64_t end, float* scales) const {
    static_cast<void>(begin), static_cast<void>(end), static_cast<void>(scales);
    return nullptr;
  }

 protected:
  StoredMatrix(int64_t rows, int64_t cols, std::vector<const SafetensorsEntry*> tensors)
      : rows_(rows), cols_(cols), tensors_(std::move(tensors)) {}

 private:
  int64_t rows_;
  int64_t cols_;
  std::vector<const SafetensorsEntry*> tensors_;
};

// Tensor `name` if it has this shape; InvalidArgument names the tensor, found and expected shape otherwise.
absl::StatusOr<const SafetensorsEntry*> FindShaped(const ModelFiles& files, const std::string& name,
                                                   const std::vector<int64_t>& shape);

// Element `index` of a plain tensor (F32, BF16 or F16), and whether it is one.
bool IsPlain(const SafetensorsEntry& entry);
float PlainElement(const SafetensorsEntry& entry, int64_t index);
// `count` elements from `begin` on.
void ReadPlain(const SafetensorsEntry& entry, int64_t begin, int64_t count, float* out);

}  // namespace aludel
