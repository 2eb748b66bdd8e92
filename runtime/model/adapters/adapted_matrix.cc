#include "runtime/model/adapters/adapted_matrix.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace aludel {
namespace {

std::vector<const SafetensorsEntry*> TensorsOf(const StoredMatrix& matrix, const LoraUpdate& update) {
  std::vector<const SafetensorsEntry*> tensors = matrix.tensors();
  tensors.insert(tensors.end(), {update.a, update.b});
  return tensors;
}

class AdaptedMatrix final : public StoredMatrix {
 public:
  AdaptedMatrix(std::unique_ptr<StoredMatrix> matrix, const LoraUpdate& update)
      : StoredMatrix(matrix->rows(), matrix->cols(), TensorsOf(*matrix, update)),
        matrix_(std::move(matrix)),
        update_(update) {}

  std::vector<TensorBytes> BytesOf(int64_t begin, int64_t end) const override {
    std::vector<TensorBytes> bytes = matrix_->BytesOf(begin, end);
    const size_t row_bytes = update_.b->data.size() / static_cast<size_t>(rows());
    bytes.push_back({update_.a, 0, update_.a->data.size()});
    bytes.push_back({update_.b, begin * row_bytes, end * row_bytes});
    return bytes;
  }

  void Read(int64_t begin, int64_t end, float* out) const override {
    matrix_->Read(begin, end, out);
    const int64_t rank = update_.a->shape[0];
    std::vector<float> a(static_cast<size_t>(rank * cols()));
    std::vector<float> b(static_cast<size_t>((end - begin) * rank));
    ReadPlain(*update_.a, 0, rank * cols(), a.data());
    ReadPlain(*update_.b, begin * rank, (end - begin) * rank, b.data());
    std::vector<float> delta(static_cast<size_t>(cols()));
    for (int64_t row = 0; row < end - begin; ++row) {
      std::fill(delta.begin(), delta.end(), 0.0f);
      for (int64_t r = 0; r < rank; ++r) {
        const float factor = b[row * rank + r];
        const float* a_row = a.data() + r * cols();
        for (int64_t i = 0; i < cols(); ++i) delta[i] += factor * a_row[i];
      }
      float* to = out + row * cols();
      for (int64_t i = 0; i < cols(); ++i) to[i] += update_.scale * delta[i];
    }
  }

  TensorView InPlace() const override { return {}; }  // it lies in no file

 private:
  const std::unique_ptr<StoredMatrix> matrix_;
  const LoraUpdate update_;
};

}  // namespace

std::unique_ptr<StoredMatrix> Adapt(std::unique_ptr<StoredMatrix> matrix, const LoraUpdate& update) {
  return std::make_unique<AdaptedMatrix>(std::move(matrix), update);
}

}  // namespace aludel
