#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/device_options.h"
#include "kernels/open_device.h"
#include "kernels/ops.h"
#include "tests/kernels/device_array.h"

namespace aludel {

// Every operation of every device against a double-precision loop written from its formula in ops.h, on fresh
// random inputs. Inputs and outputs go through device memory.

inline constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kBf16, WeightFormat::kInt8,
                                            WeightFormat::kInt4, WeightFormat::kFp8};

class OpsTest : public ::testing::TestWithParam<DeviceOptions> {
 protected:
  void SetUp() override {
    auto device = OpenDevice(GetParam());
    if (absl::IsFailedPrecondition(device.status())) {
      GTEST_SKIP() << device.status().message();
    }
    ASSERT_TRUE(device.ok()) << device.status();
    device_ = *std::move(device);
    ops_ = &device_->ops();
    const uint64_t seed = std::random_device{}();
    RecordProperty("seed", std::to_string(seed));
    random_.seed(seed);
  }

  template <typename T>
  DeviceArray<T> OnDevice(const std::vector<T>& host) {
    return DeviceArray<T>(*device_, host);
  }

  std::vector<float> Random(size_t count, float scale = 1.0f) {
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> values(count);
    for (float& value : values) value = normal(random_);
    return values;
  }

  // Outputs start as NaN, so that what an operation leaves out shows.
  static std::vector<float> Poisoned(size_t count) {
    return std::vector<float>(count, std::numeric_limits<float>::quiet_NaN());
  }

  static void ExpectNear(const std::vector<float>& found, const std::vector<double>& expected,
                         double tolerance) {
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_LE(std::fabs(found[i] - expected[i]), tolerance * (1.0 + std::fabs(expected[i])))
          << "element " << i << ": " << found[i] << ", want " << expected[i];
    }
  }

  static std::vector<Bf16> Narrow(const std::vector<float>& values) {
    std::vector<Bf16> narrow(values.size());
    std::transform(values.begin(), values.end(), narrow.begin(), [](float value) { return ToBf16(value); });
    return narrow;
  }

  std::unique_ptr<Device> device_;
  Ops* ops_ = nullptr;
  std::mt19937_64 random_;
};

inline const DeviceOptions kDevices[] = {
    {.name = "cpu", .threads = 1},
    {.name = "cpu", .threads = 3},
    {.name = "cpu", .threads = 2, .instructions = "portable"},
    {.name = "cpu", .threads = 2, .instructions = "avx2"},
    {.name = "cpu", .threads = 2, .instructions = "avx512"},
    {.name = "cpu", .threads = 2, .instructions = "avx512_vnni"},
    {.name = "cpu", .threads = 2, .instructions = "avx512_bf16"},
    {.name = "cpu", .threads = 2, .instructions = "onednn"},
#ifdef ALUDEL_HAVE_CUDA
    {.name = "cuda:0"},
    {.name = "cuda:0", .instructions = "mma"},
#endif
};

inline std::string DeviceLabel(const ::testing::TestParamInfo<DeviceOptions>& info) {
  if (info.param.name != "cpu") return "Cuda" + info.param.instructions;
  return "CpuThreads" + std::to_string(info.param.threads) + info.param.instructions;
}

}  // namespace aludel
