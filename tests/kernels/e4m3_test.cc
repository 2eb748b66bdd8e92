#include "kernels/e4m3.h"

#include <cmath>
#include <limits>
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "kernels/e4m3_scale.h"
#include "tests/kernels/e4m3_reference.h"

namespace aludel {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(E4m3, KnowsTheValueOfEveryCode) {
  for (int code = 0; code < 256; ++code) {
    const float found = FromE4m3(static_cast<uint8_t>(code));
    const double wanted = E4m3Value(code);
    EXPECT_EQ(std::isnan(found), std::isnan(wanted)) << code;
    EXPECT_EQ(IsE4m3Nan(static_cast<uint8_t>(code)), std::isnan(wanted)) << code;
    if (std::isnan(wanted)) continue;
    EXPECT_EQ(found, wanted) << code;
    EXPECT_EQ(std::signbit(found), code >= 128) << code;
    EXPECT_EQ(ToE4m3(found), code);
  }
}

TEST(E4m3, RoundsToTheNearestAndHalfwaysToTheEvenOne) {
  // Around every code: halfway to the next, and the floats beside that.
  for (int code = 0; code < 0x7e; ++code) {
    const auto halfway = static_cast<float>((E4m3Value(code) + E4m3Value(code + 1)) / 2);
    for (const float x : {halfway, std::nextafter(halfway, 0.0f), std::nextafter(halfway, kInfinity)}) {
      EXPECT_EQ(ToE4m3(x), NearestE4m3(x)) << x;
      EXPECT_EQ(ToE4m3(-x), NearestE4m3(-x)) << x;
    }
  }
  const uint64_t seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  for (int i = 0; i < 100000; ++i) {
    const float x = std::ldexp(normal(random), static_cast<int>(random() % 24) - 14);
    ASSERT_EQ(ToE4m3(x), NearestE4m3(x)) << x;
  }
}

TEST(E4m3, GoesNoFurtherThanItsLargestAndKeepsNan) {
  for (const float x : {448.0f, 449.0f, 464.0f, 500.0f, 1e30f, kInfinity}) {
    EXPECT_EQ(ToE4m3(x), 0x7e) << x;
    EXPECT_EQ(ToE4m3(-x), 0xfe) << x;
  }
  EXPECT_EQ(ToE4m3(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_TRUE(IsE4m3Nan(ToE4m3(kNan)));
  EXPECT_TRUE(IsE4m3Nan(ToE4m3(-kNan)));
}

TEST(E4m3, ScalesARowSoThatItsLargestIsTheLargestCode) {
  for (const float largest : {1e-30f, 0x1p-100f, 0.3f, 448.0f, 7e5f, 3e38f}) {
    const E4m3Scale scale = E4m3ScaleOf(largest);
    EXPECT_EQ(scale.scale, largest / 448.0f);
    EXPECT_EQ(ToE4m3(E4m3Input(largest, scale)), 0x7e) << largest;
    EXPECT_EQ(E4m3Input(0.0f, scale), 0.0f);
  }
  // No scale to divide by: zeros, whatever the row holds, and a scale that says what it was.
  for (const float largest : {0.0f, 1e-40f, kInfinity, kNan}) {
    const E4m3Scale scale = E4m3ScaleOf(largest);
    EXPECT_EQ(std::isfinite(scale.scale), std::isfinite(largest)) << largest;
    for (const float x : {largest, 1.0f, -kInfinity, kNan}) EXPECT_EQ(E4m3Input(x, scale), 0.0f) << largest;
  }
}

}  // namespace
}  // namespace aludel
