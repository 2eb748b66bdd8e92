#include "runtime/calibrate/aludel/code_range_meter.h"

#include <cstdint>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "runtime/codec/aludel/code_range.h"
#include "runtime/codec/aludel/latent_packing.h"
#include "runtime/codec/frame.h"

namespace aludel {
namespace {

constexpr int64_t kRank = 3;

class CodeRangeMeterTest : public ::testing::Test {
 protected:
  CodeRangeMeterTest() {
    shape_.packing = LatentPacking::kFixed;
    shape_.groups = {{2, 3, kRank}, {5, 3, kRank}};
    encoder_.resize(2);
    for (AludelEncoderGroup& group : encoder_) group.grid = {0.5f, std::vector<int>(kRank, 8), {}, 0};
  }

  // Of layers from `first_layer` on, every code of this magnitude.
  WireFrame Frame(int first_layer, int64_t tokens, int code) {
    std::vector<float> z(tokens * kRank);
    for (float& value : z) value = 0.5f * static_cast<float>(random_() % 2 == 0 ? code : -code);
    WireFrame frame;
    frame.payload.resize(MaxPackedBytes(encoder_[0].grid, shape_.packing, tokens));
    frame.payload.resize(
        PackLatents(z.data(), tokens, encoder_[0].grid, shape_.packing, absl::MakeSpan(frame.payload)));
    FrameHeader header;
    header.coverage = {.first_layer = static_cast<uint16_t>(first_layer),
                       .layers = 3,
                       .tokens = static_cast<uint32_t>(tokens)};
    frame.header = EncodeFrameHeader(header, frame.payload);
    return frame;
  }

  std::mt19937_64 random_{std::random_device{}()};
  AludelShape shape_;
  AludelEncoderWeights encoder_;
};

TEST_F(CodeRangeMeterTest, TellsNoDigitsOfAGroupThatItHasSeenLittleOf) {
  CodeRangeMeter meter(shape_, encoder_);
  // Two whole parts each, and a third that counts for nothing.
  for (int i = 0; i < 15; ++i) ASSERT_TRUE(meter.Add(Frame(2, 2 * kRangeTokens + 63, i == 7 ? 9 : 3)).ok());
  ASSERT_TRUE(meter.Add(Frame(2, kRangeTokens, 1)).ok());
  EXPECT_EQ(meter.range().digits, std::vector<double>({0, 0})) << "31 parts";
  ASSERT_TRUE(meter.Add(Frame(5, 40 * kRangeTokens, 2)).ok());
  EXPECT_EQ(meter.range().digits, std::vector<double>({0, 2})) << "each group by itself";
  ASSERT_TRUE(meter.Add(Frame(2, kRangeTokens, 1)).ok());
  EXPECT_EQ(meter.range().digits, std::vector<double>({4, 2})) << "the most of them: nine has four digits";
}

TEST_F(CodeRangeMeterTest, TellsOfEndsHoweverLittleItHasSeen) {
  CodeRangeMeter meter(shape_, encoder_);
  ASSERT_TRUE(meter.Add(Frame(5, kRangeTokens / 4, 128)).ok());
  EXPECT_EQ(meter.range().end_share, 0.25);
}

TEST_F(CodeRangeMeterTest, RefusesAFrameOfOtherLayers) {
  CodeRangeMeter meter(shape_, encoder_);
  const absl::Status status = meter.Add(Frame(3, kRangeTokens, 1));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(status.message(), "a frame of layers from 3 on, which no group of the encoder begins with");
}

}  // namespace
}  // namespace aludel
