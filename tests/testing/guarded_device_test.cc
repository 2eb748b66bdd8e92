#include "tests/testing/guarded_device.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops.h"

namespace aludel {
namespace {

class GuardedDeviceTest : public ::testing::Test {
 protected:
  GuardedDeviceTest() : device_(OpenGuardedDevice(1).value()), memory_(device_->Allocate(64).value()) {
    ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  }

  std::unique_ptr<Device> device_;
  Buffer memory_;
  std::vector<float> host_ = std::vector<float>(16, 1.5f);
};

TEST_F(GuardedDeviceTest, CopiesComeWhenTheStreamIsSynchronized) {
  const Stream stream = device_->CreateStream().value();
  device_->CopyToDevice(memory_.data(), host_.data(), 64, stream);
  std::vector<float> back(16);
  device_->CopyToHost(back.data(), memory_.data(), 64, stream);
  EXPECT_NE(back[3], back[3]) << "NaN until then";
  ASSERT_TRUE(device_->Synchronize(stream).ok());
  EXPECT_EQ(back, host_);
  device_->DestroyStream(stream);
}

TEST_F(GuardedDeviceTest, WhatNobodyWroteIsNaN) {
  device_->CopyToHost(host_.data(), memory_.data(), 64, {});
  ASSERT_TRUE(device_->Synchronize({}).ok());
  EXPECT_NE(host_[0], host_[0]);
}

using GuardedDeviceDeathTest = GuardedDeviceTest;

TEST_F(GuardedDeviceDeathTest, TheHostTouchesNoDeviceMemory) {
  volatile float* const touched = memory_.as<float>();
  EXPECT_DEATH(touched[0] = 1, "");
  EXPECT_DEATH(host_[0] = touched[0], "");
}

TEST_F(GuardedDeviceDeathTest, OperationsTakeNoHostMemory) {
  const TensorView on_host = TensorView::Of(host_.data(), 1, 16);
  const TensorView on_device = TensorView::Of(memory_.as<float>(), 1, 16);
  EXPECT_DEATH(device_->ops().Silu(on_host, on_device, {}), "Holds");
  EXPECT_DEATH(device_->CopyToDevice(host_.data(), memory_.data(), 64, {}), "Holds");
}

TEST_F(GuardedDeviceDeathTest, RepeatedWorkCallsTheSameOperationsAndNothingElse) {
  const TensorView x = TensorView::Of(memory_.as<float>(), 1, 16);
  const auto silu = [&] { device_->ops().Silu(x, x, {}); };
  device_->Replay({1, 10}, {}, silu);
  device_->Replay({1, 20}, {}, silu);
  device_->Replay({2, 10}, {}, [&] { silu(), silu(); });
  EXPECT_DEATH(device_->Replay({1, 10}, {}, [&] { silu(), silu(); }), "found->second");
  EXPECT_DEATH(device_->Replay({1, 10}, {}, [&] { device_->ops().Silu(x, x.Cols(0, 16).Rows(0, 0), {}); }),
               "found->second");
  int64_t rows = 0;
  EXPECT_DEATH(device_->Replay({3, 10}, {}, [&] { device_->ops().Silu(x.Rows(0, rows++), x, {}); }), "first");
  EXPECT_DEATH(device_->Replay({4, 10}, {}, [&] { static_cast<void>(device_->Synchronize({})); }), "trace");
}

TEST_F(GuardedDeviceTest, RepeatedWorkTakesEffectOnce) {
  device_->CopyToDevice(memory_.data(), host_.data(), 64, {});
  const TensorView x = TensorView::Of(memory_.as<float>(), 1, 16);
  const TensorView twice{memory_.data(), DType::kF32, 1, 16, 16};
  device_->Replay({1, 10}, {}, [&] { device_->ops().Silu(x, twice, {}); });
  std::vector<float> back(16);
  device_->CopyToHost(back.data(), memory_.data(), 64, {});
  ASSERT_TRUE(device_->Synchronize({}).ok());
  EXPECT_NEAR(back[0], 1.5 / (1 + std::exp(-1.5)), 1e-6);
}

}  // namespace
}  // namespace aludel
