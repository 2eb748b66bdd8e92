#include "kernels/cuda/attention/wgmma_index.h"

#include <set>

#include "gtest/gtest.h"

namespace aludel::cuda {
namespace {

// That products find what copies have put there is tested where kernels run: wgmma_attention_test.cc. Here is
// what shows only in speed, and the bits.

TEST(SwizzledByte, KeepsPiecesApartWithoutBankConflicts) {
  constexpr int kRows = 64;
  constexpr int kChunks = 16;  // two panels
  const auto banks_of = [](int byte) { return byte % 128 / 16; };
  std::set<int> places;
  for (int row = 0; row < kRows; ++row) {
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int at = SwizzledByte<kRows>(row, chunk);
      ASSERT_TRUE(at >= 0 && at < kRows * kChunks * 16 && at % 16 == 0);
      ASSERT_TRUE(places.insert(at).second) << "row " << row << " chunk " << chunk;
    }
  }
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    std::set<int> read;  // eight rows
    for (int row = 0; row < 8; ++row) read.insert(banks_of(SwizzledByte<kRows>(row, chunk)));
    ASSERT_EQ(read.size(), 8) << "chunk " << chunk;
  }
  for (int panel = 0; panel < 2; ++panel) {
    std::set<int> written;  // a panel's row
    for (int i = 0; i < 8; ++i) written.insert(banks_of(SwizzledByte<kRows>(3, panel * 8 + i)));
    ASSERT_EQ(written.size(), 8) << "panel " << panel;
  }
}

TEST(Descriptor, HasItsFieldsWhereThePtxIsaSays) {
  EXPECT_EQ(RowsByDimensions(0x1c400), 0x4000'0040'0001'1c40u);
  EXPECT_EQ(DimensionsByRows<128>(0x400), 0x4000'0040'0400'0040u);
  EXPECT_EQ(DimensionStep<128>(3), 96u / 16);                // the end of a panel's row
  EXPECT_EQ(DimensionStep<128>(5), (128 * 128 + 32) / 16u);  // the second panel
  EXPECT_EQ(RowStep(7), 7u * 16 * 128 / 16);
}

}  // namespace
}  // namespace aludel::cuda
