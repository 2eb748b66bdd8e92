#include "tests/kernels/cuda/attention/simt_warpgroup.h"
// Kernels want CUDA's words defined.
#include "kernels/cuda/attention/wgmma_attention.cuh"

#include "tests/kernels/cuda/attention/attention_check.h"

namespace aludel::cuda {
namespace {

class WgmmaAttentionTest : public SimulatedAttention {
 protected:
  template <int kDim>
  void Check(const AttentionCase& c, const Imagined& gpu = {}) {
    using Shape = WgmmaShape<kDim>;
    CheckUnits<Shape>(c, gpu, Shape::kKeys,
                      [](const AttentionArgs& args, char* shared) { AttendInGroups<Shape>(args, shared); });
  }
};

TEST_F(WgmmaAttentionTest, AttendsToOneTileOfKeys) {
  Check<64>({2, 1, 64, 16, 0, {{1, 0}}});
  Check<64>({1, 1, 64, 16, 0, {{128, 0}}});
  Check<128>({4, 1, 128, 16, 0, {{40, 60}}});
  Check<128>({2, 2, 128, 16, 0, {{37, 31}}, true});
}

// A tile of keys is 128, the ring three of them: it goes round twice and more.
TEST_F(WgmmaAttentionTest, GoesRoundTheRing) {
  Check<64>({4, 2, 64, 16, 0, {{33, 1000}}});
  Check<64>({1, 1, 64, 16, 0, {{300, 0}}, true});
  Check<128>({8, 2, 128, 16, 0, {{20, 900}}});
  for (const int64_t past : {127, 128, 255, 256, 383, 384, 511}) Check<128>({1, 1, 128, 16, 0, {{5, past}}});
}

TEST_F(WgmmaAttentionTest, TakesAnyGroupBlockAndManySequences) {
  Check<64>({7, 1, 64, 16, 0, {{1, 0}, {17, 64}, {2, 129}, {40, 3}}});
  Check<64>({6, 2, 64, 8, 0, {{64, 64}, {65, 0}}, true});
  Check<128>({5, 1, 128, 1, 0, {{9, 133}, {60, 200}}});
  Check<128>({3, 1, 128, 5, 0, {{90, 70}}});
  Check<64>({150, 1, 64, 16, 0, {{2, 5}}});
}

TEST_F(WgmmaAttentionTest, SeesASlidingWindowOnly) {
  Check<64>({2, 1, 64, 16, 1, {{70, 130}}});
  Check<64>({2, 1, 64, 16, 9, {{150, 0}}});
  Check<128>({4, 1, 128, 5, 100, {{40, 170}, {3, 400}}});
  Check<64>({1, 1, 64, 16, 300, {{200, 500}}, true});
}

TEST_F(WgmmaAttentionTest, SplitsALongPast) {
  Check<64>({4, 1, 64, 16, 0, {{5, 700}}}, {100});
  Check<128>({2, 1, 128, 16, 0, {{70, 600}, {1, 0}}, true, false, true}, {100});
  Check<64>({2, 2, 64, 16, 150, {{80, 500}}}, {100});
  Check<128>({1, 1, 128, 16, 0, {{3, 2000}}}, {3});
}

// As repeated work is launched.
TEST_F(WgmmaAttentionTest, BlocksBeyondTheLastUnitDoNothing) {
  const Imagined bucket{100, 1 << 24, 1024};
  Check<64>({4, 2, 64, 16, 0, {{5, 300}, {1, 0}, {40, 9}}}, bucket);
  Check<128>({4, 1, 128, 16, 0, {{1, 5}, {1, 513}}, true}, bucket);
}

// A block goes from unit to unit, and from head to head, with tiles of the next already on their way: units of one tile of
// keys, of none, and of more than the ring has, in sequences and splits.
TEST_F(WgmmaAttentionTest, BlocksTakeOneUnitAfterTheOther) {
  for (const unsigned launched : {1, 2, 3, 5}) {
    const Imagined few{1, 1 << 24, 0, launched};
    Check<64>({4, 2, 64, 16, 0, {{100, 300}, {1, 0}, {40, 9}}}, few);
    Check<128>({2, 1, 128, 16, 0, {{200, 0}, {70, 500}}, true}, few);
    Check<64>({2, 1, 64, 16, 9, {{150, 200}}, true}, few);
    Check<64>({4, 1, 64, 16, 0, {{5, 700}, {90, 10}}}, {100, 1 << 24, 0, launched});
    Check<128>({4, 1, 128, 16, 0, {{1, 5}, {1, 513}}}, {100, 1 << 24, 1024, launched});
  }
}

// The rows of a tile end in the middle of a warp's, where its lanes meet to store whole chunks.
TEST_F(WgmmaAttentionTest, StoresWholeChunksOfTheRowsThatThereAre) {
  for (const int64_t rows : {1, 7, 8, 15, 16, 17, 63, 65, 127}) {
    Check<64>({1, 1, 64, 16, 0, {{rows, 3}}, true, false, true});
    Check<128>({3, 1, 128, 16, 0, {{rows, 0}}, true, false, rows % 2 == 0});
  }
}

TEST_F(WgmmaAttentionTest, AttendsInRandomShapes) {
  const auto draw = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  };
  for (int i = 0; i < 12; ++i) {
    const int kv_heads = static_cast<int>(draw(1, 2));
    AttentionCase c{static_cast<int>(draw(1, 9)) * kv_heads,
                    kv_heads,
                    i % 2 == 0 ? 64 : 128,
                    static_cast<int>(draw(1, 33)),
                    draw(0, 1) * draw(1, 400),
                    {},
                    draw(0, 1) == 1};
    for (int64_t s = draw(1, 3); s > 0; --s) c.sequences.push_back({draw(1, 60), draw(0, 1) * draw(0, 600)});
    const Imagined gpu{draw(0, 1) * 100, 1 << 24, draw(0, 1) * 700,
                       static_cast<unsigned>(draw(0, 1) * draw(1, 7))};
    i % 2 == 0 ? Check<64>(c, gpu) : Check<128>(c, gpu);
  }
}

}  // namespace
}  // namespace aludel::cuda
