#include "kernels/training_ops.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/kernels/ops_fixture.h"

namespace aludel {
namespace {

class TrainingOpsTest : public OpsTest {
 protected:
  void SetUp() override {
    OpsTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    training_ = dynamic_cast<TrainingOps*>(ops_);
    ASSERT_NE(training_, nullptr);
  }

  // A matrix whose rows lie further apart than they are long, what is between them being no number.
  struct Spaced {
    int64_t rows, cols, stride;
    std::vector<float> values;
    float at(int64_t i, int64_t j) const { return values[i * stride + j]; }
  };
  Spaced MakeSpaced(int64_t rows, int64_t cols, int64_t gap, DType dtype) {
    Spaced matrix{rows, cols, cols + gap, Poisoned(rows * (cols + gap))};
    const std::vector<float> values = Random(rows * cols);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < cols; ++j) {
        const float value = values[i * cols + j];
        matrix.values[i * matrix.stride + j] = dtype == DType::kBf16 ? RoundToBf16(value) : value;
      }
    }
    return matrix;
  }
  template <typename T>
  static TrainingOps::Factor FactorOf(const DeviceArray<T>& on_device, const Spaced& matrix,
                                      bool transposed) {
    TensorView view = TensorView::Of(on_device.data(), matrix.rows, matrix.cols);
    view.stride = matrix.stride;
    return {view, transposed};
  }

  // op(a) [m, k] times op(b) [k, n], into or added to rows with gaps, which stay as they were.
  void Check(int64_t m, int64_t n, int64_t k, bool transpose_a, bool transpose_b, bool accumulate,
             DType dtype) {
    const int64_t gap = dtype == DType::kBf16 ? 8 : 4;  // rows that are whole pieces of 16 bytes, or not
    const Spaced a = transpose_a ? MakeSpaced(k, m, gap, dtype) : MakeSpaced(m, k, gap, dtype);
    const Spaced b = transpose_b ? MakeSpaced(n, k, 0, dtype) : MakeSpaced(k, n, 0, dtype);
    const Spaced before = MakeSpaced(m, n, 4, DType::kF32);
    const DeviceArray<float> out = OnDevice(before.values);
    TensorView view = TensorView::Of(out.data(), m, n);
    view.stride = before.stride;
    if (dtype == DType::kF32) {
      const DeviceArray<float> left = OnDevice(a.values), right = OnDevice(b.values);
      training_->Multiply(FactorOf(left, a, transpose_a), FactorOf(right, b, transpose_b), accumulate, view,
                          {});
      ASSERT_TRUE(device_->Synchronize({}).ok());
    } else {
      const DeviceArray<Bf16> left = OnDevice(Narrow(a.values)), right = OnDevice(Narrow(b.values));
      training_->Multiply(FactorOf(left, a, transpose_a), FactorOf(right, b, transpose_b), accumulate, view,
                          {});
      ASSERT_TRUE(device_->Synchronize({}).ok());
    }
    const std::vector<float> found = out.Read().value();
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double sum = accumulate ? before.at(i, j) : 0.0, terms = std::fabs(sum);
        for (int64_t l = 0; l < k; ++l) {
          const double term =
              double{transpose_a ? a.at(l, i) : a.at(i, l)} * double{transpose_b ? b.at(j, l) : b.at(l, j)};
          sum += term;
          terms += std::fabs(term);
        }
        ASSERT_LE(std::fabs(found[i * before.stride + j] - sum), 1e-6 * terms) << i << ", " << j;
      }
      for (int64_t j = n; j < before.stride; ++j) EXPECT_TRUE(std::isnan(found[i * before.stride + j]));
    }
  }

  TrainingOps* training_ = nullptr;
};

TEST_P(TrainingOpsTest, MultipliesEitherWayRound) {
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) {
        for (const bool accumulate : {false, true}) {
          SCOPED_TRACE(absl::StrCat(Name(dtype), " ", transpose_a, transpose_b, accumulate));
          Check(24, 40, 72, transpose_a, transpose_b, accumulate, dtype);
        }
      }
    }
  }
}

TEST_P(TrainingOpsTest, MultipliesRowsOfAnyLength) {
  for (const bool transpose_a : {false, true}) {
    for (const bool transpose_b : {false, true}) {
      SCOPED_TRACE(absl::StrCat(transpose_a, transpose_b));
      Check(7, 13, 37, transpose_a, transpose_b, false, DType::kF32);
      Check(1, 9, 1, transpose_a, transpose_b, true, DType::kF32);
    }
  }
}

TEST_P(TrainingOpsTest, AddsToDoubles) {
  const int64_t rows = 5, cols = 1300;
  const Spaced x = MakeSpaced(rows, cols, 3, DType::kF32);
  std::vector<double> sums(rows * cols);
  for (size_t i = 0; i < sums.size(); ++i) sums[i] = 1.0 + 1e-12 * static_cast<double>(i);
  const DeviceArray<double> on_device = OnDevice(sums);
  const DeviceArray<float> values = OnDevice(x.values);
  training_->AddTo(on_device.data(), FactorOf(values, x, false).matrix, {});
  const std::vector<double> found = on_device.Read().value();
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      ASSERT_EQ(found[i * cols + j], sums[i * cols + j] + static_cast<double>(x.at(i, j))) << i << ", " << j;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, TrainingOpsTest, ::testing::Values(DeviceOptions{.name = "cuda:0"}),
                         DeviceLabel);

}  // namespace
}  // namespace aludel
