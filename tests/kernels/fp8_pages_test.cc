#include "kernels/fp8_pages.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/rows.h"

namespace aludel {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// What a code means, by the definition: sign, exponent with bias 7, mantissa of three bits.
double Meaning(int code) {
  const int exponent = code >> 3 & 0xf, mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::nan("");
  const double size =
      exponent == 0 ? std::ldexp(mantissa / 8.0, -6) : std::ldexp(1 + mantissa / 8.0, exponent - 7);
  return code & 0x80 ? -size : size;
}

uint8_t Code(float value) { return ToFp8(value).bits; }

// The nearest of all codes with the value's sign, found by looking at each.
uint8_t Nearest(float value) {
  const int sign = std::signbit(value) ? 0x80 : 0;
  int best = 0;
  double distance = std::numeric_limits<double>::infinity();
  for (int code = 0; code < 0x7f; ++code) {
    const double found = std::fabs(Meaning(code) - std::fabs(static_cast<double>(value)));
    if (found > distance || (found == distance && code % 2 == 1)) continue;
    distance = found;
    best = code;
  }
  return static_cast<uint8_t>(sign | best);
}

TEST(Fp8, EveryCodeIsItsFormulaAndItself) {
  for (int code = 0; code < 256; ++code) {
    const float value = FromFp8(Fp8{static_cast<uint8_t>(code)});
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(value)) << code;
      EXPECT_EQ(Code(value) & 0x7f, 0x7f) << code;
      continue;
    }
    EXPECT_EQ(value, Meaning(code)) << code;
    EXPECT_EQ(std::signbit(value), code >= 0x80) << code;
    EXPECT_EQ(Code(value), code);
  }
}

TEST(Fp8, HalfwayGoesToTheEvenCodeAndNextToThatToTheNearer) {
  for (int code = 0; code < 0x7e; ++code) {
    const auto middle = static_cast<float>((Meaning(code) + Meaning(code + 1)) / 2);
    for (const int sign : {0, 0x80}) {
      const auto signed_code = [&](float value) { return Code(sign == 0 ? value : -value); };
      EXPECT_EQ(signed_code(middle), sign | (code % 2 == 0 ? code : code + 1)) << code;
      EXPECT_EQ(signed_code(std::nextafter(middle, 0.0f)), sign | code) << code;
      EXPECT_EQ(signed_code(std::nextafter(middle, kInfinity)), sign | (code + 1)) << code;
    }
  }
}

TEST(Fp8, WhatIsTooLargeSaturatesAndNaNStays) {
  for (const float value :
       {448.0f, 449.0f, 464.0f, 480.0f, 1e9f, std::numeric_limits<float>::max(), kInfinity}) {
    EXPECT_EQ(Code(value), 0x7e) << value;
    EXPECT_EQ(Code(-value), 0xfe) << value;
  }
  EXPECT_EQ(Code(kNan) & 0x7f, 0x7f);
  EXPECT_EQ(Code(-kNan) & 0x7f, 0x7f);
  for (const float value : {0.0f, std::numeric_limits<float>::denorm_min(), 1e-30f, 0x1p-10f}) {
    EXPECT_EQ(Code(value), 0) << value;
    EXPECT_EQ(Code(-value), 0x80) << value;
  }
}

TEST(Fp8, AnyNumberBecomesTheNearest) {
  const uint64_t seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int i = 0; i < 200000; ++i) {
    // All bit patterns, and the exponents that there are codes for more often.
    auto bits = static_cast<uint32_t>(random());
    if (i % 4 != 0) bits = (bits & 0x807fffffu) | static_cast<uint32_t>(115 + random() % 22) << 23;
    const auto value = __builtin_bit_cast(float, bits);
    if (std::isnan(value)) {
      ASSERT_EQ(Code(value) & 0x7f, 0x7f) << bits;
    } else {
      ASSERT_EQ(Code(value), Nearest(value)) << value;
    }
  }
}

TEST(Fp8, RowsWidenToBf16Exactly) {
  std::vector<Fp8> codes;
  for (int code = 0; code < 256; ++code) codes.push_back({static_cast<uint8_t>(code)});
  for (const int64_t count : {int64_t{1}, int64_t{31}, int64_t{256}}) {
    std::vector<Bf16> wide(count);
    cpu::WidenFp8(codes.data(), count, wide.data());
    for (int64_t i = 0; i < count; ++i) {
      if ((i & 0x7f) == 0x7f) {
        EXPECT_TRUE(std::isnan(ToFloat(wide[i])));
      } else {
        EXPECT_EQ(wide[i].bits, ToBf16(static_cast<float>(Meaning(static_cast<int>(i)))).bits) << i;
      }
    }
  }
}

}  // namespace
}  // namespace aludel
