#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/onednn_loader.h"
#include "kernels/open_device.h"
#include "runtime/calibrate/fit/dense.h"
#include "runtime/calibrate/fit/device_products.h"
#include "tests/kernels/cuda/fake/fake_cuda.h"

// Which of calibration's products go to the device, what they bring there, and what becomes of those that it cannot make.
namespace aludel::cuda::fake {
namespace {

using ::testing::HasSubstr;
using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

constexpr int64_t kSide = 416;

class CalibrationProducts : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(cpu::LoadOneDnn().ok()); }
  void TearDown() override {
    products_ = nullptr;
    device_ = nullptr;
    Heal();
  }

  // Ones times twos, added to threes.
  void ExpectRight(int64_t side, const Buffer* kept = nullptr) {
    const std::vector<float> a(side * side, 1.0f);
    std::vector<float> c(side * side, 3.0f);
    Sgemm(false, true, side, side, side, a.data(), side, twos_.data(), side, 1.0f, c.data(), side, kept);
    for (const float value : c) ASSERT_EQ(value, 3.0f + 2.0f * static_cast<float>(side));
  }

  std::unique_ptr<Device> device_ = OpenDevice({.name = "cuda:0"}).value();
  std::unique_ptr<ProductDevice> products_ = std::make_unique<ProductDevice>(device_.get());
  const std::vector<float> twos_ = std::vector<float>(kSide * kSide, 2.0f);
};

TEST_F(CalibrationProducts, LargeOnesAreTheDevices) {
  ResetCounts();
  ExpectRight(100);
  EXPECT_EQ(counts().launches["cublasLtMatmul"], 0);
  ExpectRight(kSide);
  EXPECT_EQ(counts().launches["cublasLtMatmul"], 1);
  EXPECT_EQ(counts().copied_bytes, 3 * kSide * kSide * 4);
  // Room is kept, and so is a factor that was announced.
  const auto kept = KeepForProducts(twos_.data(), twos_.size() * sizeof(float));
  ResetCounts();
  ExpectRight(kSide, kept.get());
  EXPECT_EQ(counts().allocations, 0);
  EXPECT_EQ(counts().copied_bytes, 2 * kSide * kSide * 4);
}

TEST_F(CalibrationProducts, MomentsTravelOnceForAllTheirRows) {
  constexpr int64_t kRows = 2048, kColumns = 192;
  const std::vector<float> x(kRows * kColumns, 1.0f);
  Moments gram = Moments::Zeros(kColumns, kColumns);
  ResetCounts();
  AddGram(x.data(), kRows, &gram);
  for (const double value : gram.values) ASSERT_EQ(value, kRows);
  EXPECT_EQ(counts().launches["cublasLtMatmul"], 4);
  EXPECT_EQ(counts().launches["AddTo"], 4);
  EXPECT_EQ(counts().copied_bytes, kRows * kColumns * 4 + 2 * kColumns * kColumns * 8);
}

TEST_F(CalibrationProducts, WithoutMemoryTheyAreTheHosts) {
  FailAllocationsAbove(1000);
  CaptureStderr();
  EXPECT_EQ(KeepForProducts(twos_.data(), twos_.size() * sizeof(float)), nullptr);
  ExpectRight(kSide);
  FailAllocationsAbove(SIZE_MAX);
  const std::string said = GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("the host multiplies where cuda:0 cannot"));
  EXPECT_EQ(said.find("warning"), said.rfind("warning")) << "said once: " << said;
  ResetCounts();
  ExpectRight(kSide);  // there is memory again
  EXPECT_EQ(counts().launches["cublasLtMatmul"], 1);
}

TEST_F(CalibrationProducts, WithoutAnAlgorithmTheyAreTheHosts) {
  WithholdHeuristics(true);
  CaptureStderr();
  ExpectRight(kSide);
  EXPECT_THAT(GetCapturedStderr(), HasSubstr("cuBLASLt has no algorithm"));
}

TEST_F(CalibrationProducts, AfterTheDeviceHasFailedTheyAreTheHosts) {
  ExpectRight(kSide);
  FailAtLaunch(1, cudaErrorIllegalAddress);  // which stays
  CaptureStderr();
  ExpectRight(kSide);
  ExpectRight(kSide);
  EXPECT_THAT(GetCapturedStderr(), HasSubstr("the host multiplies where cuda:0 cannot"));
}

}  // namespace
}  // namespace aludel::cuda::fake
