#include "tests/kernels/cuda/simt.h"
// Kernels want CUDA's words defined.
#include "kernels/cuda/attention/mma_attention.cuh"

#include <type_traits>

#include "tests/kernels/cuda/attention/attention_check.h"

namespace aludel::cuda {
namespace {

class MmaAttentionTest : public SimulatedAttention {
 protected:
  template <typename Shape>
  void Check(const AttentionCase& c, const Imagined& gpu = {}) {
    ASSERT_EQ(c.fp8, (std::is_same_v<typename Shape::Page, Fp8>));
    const auto attend = [](const AttentionArgs& args, char* shared) { AttendUnit<Shape>(args, shared); };
    CheckUnits<Shape>(c, gpu, 64, attend);
    if (Shape::kKeyWarps > 1) CheckUnits<Shape>(c, gpu, 64, attend, /*joins_itself=*/true);
  }
};

TEST_F(MmaAttentionTest, PrefillAttendsWithEveryHeadSize) {
  Check<PrefillShape<64>>({4, 2, 64, 16, 0, {{70, 0}}});
  Check<PrefillShape<96>>({3, 1, 96, 16, 0, {{50, 9}}});
  Check<PrefillShape<128>>({4, 1, 128, 16, 0, {{40, 100}}});
  Check<PrefillShape<256>>({2, 1, 256, 16, 0, {{37, 31}}});
}

TEST_F(MmaAttentionTest, PrefillFillsUpHeadsOfOddSizesWithZeros) {
  Check<PrefillShape<64>>({2, 2, 40, 16, 0, {{33, 0}}});
  Check<PrefillShape<96>>({2, 1, 80, 16, 0, {{20, 64}}, true});
  Check<PrefillShape<256>>({1, 1, 136, 16, 0, {{3, 0}}});
}

// Of rows that whole chunks are loaded from and stored to.
TEST_F(MmaAttentionTest, PrefillMovesWholeChunks) {
  for (const bool bf16_rows : {false, true}) {
    Check<PrefillShape<64>>({3, 1, 40, 16, 0, {{33, 0}}, bf16_rows, false, true});
    Check<PrefillShape<96>>({2, 1, 80, 16, 0, {{20, 64}}, bf16_rows, false, true});
    Check<PrefillShape<128>>({4, 1, 128, 16, 0, {{40, 100}}, bf16_rows, false, true});
    Check<PrefillShape<256>>({2, 1, 136, 16, 0, {{3, 0}}, bf16_rows, false, true});
  }
}

TEST_F(MmaAttentionTest, PrefillTakesAnyGroupAndManySequences) {
  Check<PrefillShape<64>>({7, 1, 64, 16, 0, {{1, 0}, {17, 64}, {2, 129}, {40, 3}}});
  Check<PrefillShape<64>>({6, 2, 64, 8, 0, {{64, 64}, {65, 0}}, true});
  Check<PrefillShape<64>>({150, 1, 64, 16, 0, {{2, 5}}});
}

TEST_F(MmaAttentionTest, PrefillSeesASlidingWindowOnly) {
  Check<PrefillShape<64>>({2, 1, 64, 16, 1, {{70, 130}}});
  Check<PrefillShape<64>>({2, 1, 64, 16, 9, {{150, 0}}});
  Check<PrefillShape<64>>({4, 1, 64, 5, 100, {{40, 170}, {3, 400}}});
}

TEST_F(MmaAttentionTest, PrefillSplitsALongPast) {
  Check<PrefillShape<64>>({4, 1, 64, 16, 0, {{5, 300}}}, {100});
  Check<PrefillShape<128>>({2, 1, 128, 16, 0, {{70, 200}, {1, 0}}, true}, {100});
  Check<PrefillShape<64>>({2, 2, 64, 16, 150, {{80, 300}}}, {100});
  // The first rows see no key of the last splits.
  Check<PrefillShape<64>>({4, 1, 64, 16, 0, {{150, 0}}}, {100});
}

TEST_F(MmaAttentionTest, DecodeAttendsWithEveryHeadSize) {
  Check<DecodeShape<64>>({4, 2, 64, 16, 0, {{1, 0}, {1, 62}, {1, 63}, {1, 64}, {1, 200}}});
  Check<DecodeShape<96>>({3, 1, 96, 16, 0, {{1, 77}, {1, 15}}, true});
  Check<DecodeShape<128>>({8, 2, 128, 16, 0, {{1, 130}, {1, 3}}});
  Check<DecodeShape<256>>({2, 1, 256, 16, 0, {{1, 70}, {1, 0}}});
  Check<DecodeShape<64>>({2, 2, 24, 16, 0, {{1, 50}}});
}

TEST_F(MmaAttentionTest, DecodeTakesSeveralRowsAndAnyGroup) {
  Check<DecodeShape<64>>({4, 1, 64, 16, 0, {{4, 61}, {2, 0}, {3, 128}}});
  Check<DecodeShape<64>>({40, 1, 64, 16, 0, {{1, 90}}});
  Check<DecodeShape<64>>({5, 1, 64, 1, 0, {{3, 33}}});
}

TEST_F(MmaAttentionTest, DecodeSplitsKeysAndJoinsThem) {
  Check<DecodeShape<64>>({4, 2, 64, 16, 0, {{1, 500}, {1, 10}, {1, 128}}}, {1000});
  Check<DecodeShape<128>>({4, 1, 128, 16, 0, {{1, 333}}, true}, {1000});
  Check<DecodeShape<256>>({3, 1, 256, 16, 0, {{2, 190}}}, {1000});
  Check<DecodeShape<64>>({4, 1, 64, 16, 100, {{1, 400}, {4, 1000}}}, {1000});
  Check<DecodeShape<64>>({34, 2, 64, 16, 0, {{1, 400}}}, {1000});
}

// As repeated work is launched: with blocks for as many splits as such sequences may have.
TEST_F(MmaAttentionTest, BlocksBeyondTheLastUnitDoNothing) {
  const Imagined bucket{1000, 1 << 24, 1024};
  Check<DecodeShape<64>>({4, 2, 64, 16, 0, {{1, 0}, {1, 63}, {1, 64}, {1, 700}, {1, 1023}}}, bucket);
  Check<DecodeShape<64>>({4, 2, 64, 16, 0, {{1, 5}, {1, 60}}}, bucket);
  Check<DecodeShape<128>>({4, 1, 128, 16, 0, {{1, 5}, {1, 513}}, true}, bucket);
  Check<DecodeShape<256>>({3, 1, 256, 16, 0, {{1, 31}, {1, 190}}}, bucket);
  Check<DecodeShape<64>>({4, 1, 64, 16, 100, {{1, 7}, {1, 400}, {1, 1000}}}, bucket);
  Check<DecodeShape<64>>({34, 2, 64, 16, 0, {{1, 130}, {1, 3}}}, bucket);
  Check<DecodeShape<64>>({4, 1, 64, 16, 0, {{1, 200}, {1, 900}}}, {40, 1 << 24, 1024});
  Check<PrefillShape<64>>({4, 1, 64, 16, 0, {{5, 300}, {1, 0}, {40, 9}}}, bucket);
}

TEST_F(MmaAttentionTest, PrefillAttendsOverPagesOfFp8) {
  Check<OverFp8<PrefillShape<64>>>({4, 2, 64, 16, 0, {{70, 0}}, false, true});
  Check<OverFp8<PrefillShape<64>>>({2, 1, 48, 5, 60, {{40, 170}, {3, 400}}, true, true});
  Check<OverFp8<PrefillShape<96>>>({3, 1, 96, 16, 0, {{50, 9}}, false, true});
  Check<OverFp8<PrefillShape<128>>>({4, 1, 128, 16, 0, {{40, 100}}, false, true}, {100});
  Check<OverFp8<PrefillShape<256>>>({2, 1, 256, 16, 0, {{37, 31}}, false, true});
}

TEST_F(MmaAttentionTest, DecodeAttendsOverPagesOfFp8) {
  Check<OverFp8<DecodeShape<64>>>(
      {4, 2, 64, 16, 0, {{1, 0}, {1, 62}, {1, 63}, {1, 64}, {1, 200}}, false, true});
  Check<OverFp8<DecodeShape<64>>>({4, 1, 32, 16, 100, {{1, 400}, {4, 700}}, false, true}, {1000});
  Check<OverFp8<DecodeShape<96>>>({3, 1, 96, 16, 0, {{1, 77}, {1, 15}}, true, true});
  Check<OverFp8<DecodeShape<128>>>({8, 2, 128, 16, 0, {{1, 333}, {1, 3}}, true, true}, {1000});
  Check<OverFp8<DecodeShape<256>>>({2, 1, 256, 16, 0, {{1, 70}, {1, 0}}, false, true});
}

// The five results of splits that fit are 5 * 16 * 66 floats.
TEST_F(MmaAttentionTest, SplitsAreAsFewAsTheirResultsHaveRoomFor) {
  Check<DecodeShape<64>>({1, 1, 64, 16, 0, {{1, 600}}}, {1000, 5 * 16 * 66});
  Check<DecodeShape<64>>({1, 1, 64, 16, 0, {{1, 600}}}, {1000, 0});
}

}  // namespace
}  // namespace aludel::cuda
