#include "server/bench/store/sim_frames.h"

#include "gtest/gtest.h"
#include "runtime/codec/aludel/embedded_coder.h"
#include "server/store/cut_frames.h"

namespace aludel {
namespace {

TEST(SimFrames, ACutOfTheWholeCodeIsAsLargeAsTheFormatSays) {
  SimFrames frames({251, 160, 90, 48, 24});
  for (const int64_t tokens : {1, 7, 300, 512, 2048}) {
    const StoredFrames whole = frames.Of(tokens, 0);
    const auto planes = CountPlanes(whole->front().payload);
    ASSERT_TRUE(planes.ok()) << planes.status();
    EXPECT_EQ(*planes, 5);
    for (size_t format = 0; format < 5; ++format) {
      const uint8_t kept = frames.PlanesOf(format);
      const double bytes = static_cast<double>(tokens) * std::vector<double>{251, 160, 90, 48, 24}[format];
      EXPECT_NEAR(static_cast<double>(frames.PayloadBytes(tokens, kept)), bytes, 2) << format;
      if (format == 0) continue;
      EXPECT_EQ(CutBytes(*whole, kept), frames.PayloadBytes(tokens, kept));
    }
  }
}

TEST(SimFrames, ChunksOfOneLengthShareTheirFrames) {
  SimFrames frames({100});
  const StoredFrames first = frames.Of(512, 0);
  EXPECT_EQ(first, frames.Of(512, 0));
  EXPECT_NE(first, frames.Of(511, 0));
}

}  // namespace
}  // namespace aludel
