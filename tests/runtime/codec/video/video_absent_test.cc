// Linked with hevc_absent.cc in front of the library: what a build with -DALUDEL_VIDEO=OFF does with packing video.
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/codec/aludel/latent_packing.h"
#include "runtime/codec/video/hevc.h"
#include "runtime/codec/video/video_coder.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kTokens = 300;

LatentGrid Grid() { return {0.5f, {6, 10, 4}}; }

void ExpectReason(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("-DALUDEL_VIDEO=ON"));
}

TEST(VideoAbsent, IsRefusedWithTheReasonBeforeAnythingIsCoded) {
  ExpectReason(CheckPacking(LatentPacking::kVideo));
  ExpectReason(VideoCoder::CheckEncoder({Grid()}, kTokens));
  ExpectReason(VideoCoder::CheckDecoder({Grid()}));
  for (const LatentPacking packing :
       {LatentPacking::kFixed, LatentPacking::kDeflate, LatentPacking::kRans, LatentPacking::kEmbedded}) {
    EXPECT_TRUE(CheckPacking(packing).ok()) << Name(packing);
  }
}

TEST(VideoAbsent, NeitherMakesAPictureNorReadsOne) {
  const LatentGrid grid = Grid();
  const VideoCoder coder(grid);
  const std::vector<uint8_t> planes(PlaneBytes(grid.bits, LatentPacking::kVideo, kTokens));
  std::vector<uint8_t> payload(VideoCoder::MaxBytes(grid.bits, kTokens));
  const int64_t before = GetVideoFailures().payloads;
  ASSERT_EQ(coder.Encode(planes, kTokens, absl::MakeSpan(payload)), payload.size());
  EXPECT_EQ(payload[0], 0);
  EXPECT_EQ(GetVideoFailures().payloads, before + 1);
  EXPECT_THAT(GetVideoFailures().first, HasSubstr("-DALUDEL_VIDEO=ON"));
  payload[0] = 1;  // says that a picture follows
  std::vector<uint8_t> back;
  ExpectReason(coder.Decode(payload, kTokens, &back).status());
}

// FORMAT.md's example: codes that no picture would have made smaller.
TEST(VideoAbsent, ReadsCodesThatAreInNoPicture) {
  const std::vector<uint8_t> payload = {0x00, 0x03, 0xd4, 0xfe};
  std::vector<float> z(2);
  ASSERT_TRUE(UnpackLatents(payload, 1, {1.0f, {8, 12}}, LatentPacking::kVideo, z.data()).ok());
  EXPECT_THAT(z, ElementsAre(3.0f, -300.0f));
}

}  // namespace
}  // namespace aludel
