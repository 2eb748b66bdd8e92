#include "runtime/model/prefill_warm_up.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device_health.h"
#include "tests/kernels/cuda/fake/fake_cuda.h"
#include "tests/kernels/cuda/fake/zero_model.h"
#include "tests/runtime/model/temporary_directory.h"
#include "tests/testing/test_model.h"

namespace aludel::cuda::fake {
namespace {

using ::testing::HasSubstr;

constexpr Shape kShape = {"two layers", 2, 1024, 2048, 8, 2, 128, 1024};
constexpr int64_t kMostRows = 700;

class PrefillWarmUp : public ::testing::TestWithParam<WeightFormat> {
 protected:
  PrefillWarmUp() {
    CountOnly(true);
    WriteZeros(kShape, files_.path());
    OfferAlgorithms({3, 2, 1});
  }
  ~PrefillWarmUp() override {
    Heal();
    CountOnly(false);
  }
  TestModel Load(const DeviceOptions& device = {}) const {
    TransformerOptions options;
    options.max_rows = kMostRows;
    options.weights = GetParam();
    return TestModel(files_.path(), options, DType::kBf16, kMostRows, device);
  }

  const TemporaryDirectory files_;
};

TEST_P(PrefillWarmUp, LeavesNoProductToBeTimed) {
  TestModel model = Load();
  const int64_t before = ProductsTimed().shapes;
  ASSERT_TRUE(WarmUpPrefill(model.model(), DType::kBf16).ok());
  const int64_t warm = ProductsTimed().shapes;
  // Of four products of a layer, in two classes at least: up to 512 rows, and up to 700.
  EXPECT_GE(warm, before + 4 * 2);
  const std::vector<int32_t> ids(kMostRows);
  for (int64_t rows = 1; rows <= kMostRows; ++rows) {
    model.Rewind(0);
    model.Run(absl::MakeConstSpan(ids).first(rows));
    ASSERT_EQ(ProductsTimed().shapes, warm) << rows;
  }
}

TEST_P(PrefillWarmUp, TakesNoStepWhereNothingIsTimed) {
  TestModel model = Load({.time_algorithms = false});
  ResetCounts();
  ASSERT_TRUE(WarmUpPrefill(model.model(), DType::kBf16).ok());
  EXPECT_TRUE(counts().launches.empty());
}

TEST_P(PrefillWarmUp, SaysWhatHadNoMemory) {
  TestModel model = Load();
  FailAllocationsAbove(1 << 20);
  const absl::Status refused = WarmUpPrefill(model.model(), DType::kBf16);
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("KV"));
}

INSTANTIATE_TEST_SUITE_P(Of, PrefillWarmUp, ::testing::Values(WeightFormat::kBf16, WeightFormat::kFp8),
                         [](const auto& info) { return info.param == WeightFormat::kFp8 ? "Fp8" : "Bf16"; });

}  // namespace
}  // namespace aludel::cuda::fake
