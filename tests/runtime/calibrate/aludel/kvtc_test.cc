#include "runtime/calibrate/aludel/kvtc.h"

#include <cmath>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/codec/aludel/latent_packing.h"

namespace aludel {
namespace {

constexpr int64_t kRows = 600, kColumns = 24, kBudget = 6;

// The data of kvtc_reference.py, whose output stands in the expectations below.
class KvtcReference : public ::testing::Test {
 protected:
  KvtcReference() : x_(kRows * kColumns) {
    uint64_t state = 1;
    const auto uniform = [&state] {
      state = state * 6364136223846793005u + 1442695040888963407u;
      return static_cast<double>(state >> 40) / (1 << 24) - 0.5;
    };
    std::vector<double> mixing(kColumns * kColumns);
    for (double& value : mixing) value = uniform();
    for (int64_t t = 0; t < kRows; ++t) {
      std::vector<double> row(kColumns);
      for (int64_t k = 0; k < kColumns; ++k) {
        const double u = uniform() * 4 * std::pow(0.8, k);
        for (int64_t j = 0; j < kColumns; ++j) row[j] += u * mixing[k * kColumns + j];
      }
      for (int64_t j = 0; j < kColumns; ++j) {
        x_[t * kColumns + j] = static_cast<float>(row[j] + static_cast<double>(j) / 8);
      }
    }
    read_ = [this](int64_t row, float* out) { std::copy_n(x_.data() + row * kColumns, kColumns, out); };
    basis_ = FitPrincipalBasis(read_, kRows, kColumns, kColumns).value();
    plan_ = ChooseWidths(Coordinates(basis_, read_, kRows, 1), kColumns, kBudget);
  }

  std::vector<float> x_;
  RowReader read_;
  PrincipalBasis basis_;
  WidthPlan plan_;
};

TEST_F(KvtcReference, ChoosesTheSameWidthsAtTheSameError) {
  std::vector<int> want(8, 4);
  want.resize(16, 2);
  want.resize(24, 0);
  EXPECT_EQ(plan_.widths, want);
  EXPECT_NEAR(plan_.error, 37.20561589529982, 0.01);
}

TEST_F(KvtcReference, DecodesFromItsBytesWithTheSameErrorAndSize) {
  const KvtcGroup group = MakeKvtcGroup(basis_, plan_);
  const int64_t rank = group.encoder.matrix.rows;
  ASSERT_EQ(rank, 16);
  std::vector<float> z(kRows * rank);
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t i = 0; i < rank; ++i) {
      z[t * rank + i] = std::inner_product(x_.begin() + t * kColumns, x_.begin() + (t + 1) * kColumns,
                                           group.encoder.matrix.row(i), group.encoder.offset[i]);
    }
  }
  for (const auto& [packing, want] :
       {std::pair(LatentPacking::kFixed, 3600.0), std::pair(LatentPacking::kDeflate, 4042.0)}) {
    std::vector<uint8_t> bytes(MaxPackedBytes(group.encoder.grid, packing, kRows));
    bytes.resize(PackLatents(z.data(), kRows, group.encoder.grid, packing, absl::MakeSpan(bytes)));
    EXPECT_NEAR(static_cast<double>(bytes.size()), want, packing == LatentPacking::kFixed ? 0 : 0.02 * want);
    std::vector<float> latents(z.size());
    ASSERT_TRUE(UnpackLatents(bytes, kRows, group.decoder.grid, packing, latents.data()).ok());
    double error = 0;
    for (int64_t t = 0; t < kRows; ++t) {
      for (int64_t j = 0; j < kColumns; ++j) {
        const float decoded = std::inner_product(latents.begin() + t * rank, latents.begin() + (t + 1) * rank,
                                                 group.decoder.linear.row(j), group.decoder.bias[j]);
        error += std::pow(double{decoded} - x_[t * kColumns + j], 2);
      }
    }
    EXPECT_NEAR(error, 37.20561589529984, 0.01);
  }
}

TEST_F(KvtcReference, MoreBytesNeverCostMoreError) {
  const std::vector<float> coordinates = Coordinates(basis_, read_, kRows, 1);
  double last = ChooseWidths(coordinates, kColumns, 0).error;
  for (int64_t bytes = 1; bytes <= 24; ++bytes) {
    const WidthPlan plan = ChooseWidths(coordinates, kColumns, bytes);
    EXPECT_LE(plan.error, last) << bytes;
    EXPECT_LE(std::accumulate(plan.widths.begin(), plan.widths.end(), 0), 8 * bytes);
    last = plan.error;
  }
  EXPECT_LT(last, 1.0);
}

TEST(ChooseStep, OneBitTakesTwoLevels) {
  const std::vector<float> values = {-1, 1, -1, 1};
  const StepChoice choice = ChooseStep(values, 1);
  EXPECT_FLOAT_EQ(choice.step, 2.0f);  // levels of +-1
  EXPECT_NEAR(choice.error, 0, 1e-6);
  EXPECT_EQ(ChooseStep(values, 0).error, 4);
}

}  // namespace
}  // namespace aludel
