#include "tests/kernels/cuda/simt.h"
// Kernels want CUDA's words defined.
#include "kernels/cuda/kv_page.cuh"

#include <cmath>
#include <cstring>
#include <random>
#include <string>

#include "gtest/gtest.h"

namespace aludel::cuda {
namespace {

void ExpectWidened(const uint8_t (&codes)[8]) {
  uint32_t words[2];
  std::memcpy(words, codes, sizeof(words));
  const uint4 wide = WidenFp8(words[0], words[1]);
  Bf16 found[8];
  std::memcpy(static_cast<void*>(found), &wide, sizeof(found));
  for (int i = 0; i < 8; ++i) {
    const float value = FromFp8(Fp8{codes[i]});
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(ToFloat(found[i]))) << i;
    } else {
      ASSERT_EQ(found[i].bits, ToBf16(value).bits) << i << ": " << value;
    }
  }
}

TEST(WidenFp8, EveryCodeInEveryPlaceIsItsNumber) {
  const uint64_t seed = std::random_device{}();
  RecordProperty("seed", std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int code = 0; code < 256; ++code) {
    for (int place = 0; place < 8; ++place) {
      uint8_t codes[8];
      for (uint8_t& other : codes) other = static_cast<uint8_t>(random());
      codes[place] = static_cast<uint8_t>(code);
      ASSERT_NO_FATAL_FAILURE(ExpectWidened(codes));
      // NaN beside it takes another way.
      codes[(place + 1) % 8] = 0xff;
      ASSERT_NO_FATAL_FAILURE(ExpectWidened(codes));
    }
  }
}

TEST(WidenFp8, RowsOfPagesAreRoundedAsTheWireRounds) {
  const float value = 1.0f + 0x1p-9f;
  EXPECT_EQ(AsRow<float>(value), value);
  EXPECT_EQ(AsRow<Bf16>(value), 1.0f);
  EXPECT_EQ(AsRow<Fp8>(value), 1.0f);
  EXPECT_EQ(kKeyScale<float>, 1.0f);
  EXPECT_EQ(kKeyScale<Bf16>, 1.0f);
  EXPECT_EQ(kKeyScale<Fp8>, KeyScale(DType::kFp8));
}

}  // namespace
}  // namespace aludel::cuda
