#include "kernels/cuda/attention/mma_index.h"

#include <set>

#include "gtest/gtest.h"

namespace aludel::cuda {
namespace {

// What the lanes of a warp hold is tested where kernels run: mma_attention_test.cc. Here is what shows only
// in speed.

template <int kDim>
void CheckTile() {
  SCOPED_TRACE(kDim);
  constexpr int kChunks = kDim / kChunkElements;
  std::set<int> places;
  for (int row = 0; row < 64; ++row) {
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int at = SwizzledChunk<kDim>(row, chunk);
      ASSERT_EQ(at / kChunks, row);
      ASSERT_TRUE(places.insert(at).second) << "row " << row << " chunk " << chunk;
    }
  }
  // ldmatrix reads 8 rows at once: on 32 banks of 4 bytes there are 8 places for 16 bytes.
  for (int row = 0; row < 64; row += 8) {
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      std::set<int> banks;
      for (int i = 0; i < 8; ++i) banks.insert(SwizzledChunk<kDim>(row + i, chunk) % 8);
      ASSERT_EQ(banks.size(), 8) << "row " << row << " chunk " << chunk;
    }
  }
}

TEST(SwizzledChunk, KeepsRowsApartAndReadsWithoutBankConflicts) {
  CheckTile<32>();
  CheckTile<64>();
  CheckTile<96>();
  CheckTile<128>();
  CheckTile<256>();
}

}  // namespace
}  // namespace aludel::cuda
