#include "runtime/codec/video/video_coder.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/codec/aludel/latent_packing.h"
#include "runtime/codec/video/hevc.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr LatentPacking kVideo = LatentPacking::kVideo;

std::vector<uint8_t> Pack(const std::vector<float>& z, int64_t tokens, const LatentGrid& grid,
                          LatentPacking packing) {
  std::vector<uint8_t> bytes(MaxPackedBytes(grid, packing, tokens));
  bytes.resize(PackLatents(z.data(), tokens, grid, packing, absl::MakeSpan(bytes)));
  return bytes;
}

// Failures tell the seed.
class VideoCoderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(VideoCoder::CheckEncoder({}, 1).ok()) << LoadHevcEncoder();
    ASSERT_TRUE(VideoCoder::CheckDecoder({}).ok()) << LoadHevcDecoder();
  }
  std::vector<float> Noise(int64_t count, float scale) {
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> values(count);
    for (float& value : values) value = normal(random_);
    return values;
  }

  const unsigned seed_ = std::random_device{}();
  const ::testing::ScopedTrace trace_{__FILE__, __LINE__, absl::StrCat("seed ", seed_)};
  std::mt19937_64 random_{seed_};
};

// Bit by bit what the packing without any coder gives.
TEST_F(VideoCoderTest, GivesTheCodesOfFixed) {
  const std::vector<int> bits = {1, 2, 3, 5, 7, 8, 9, 13, 16};
  const auto rank = static_cast<int64_t>(bits.size());
  for (const int64_t tokens : {1, 3, 8, 257, 3000}) {
    for (const float scale : {0.1f, 2.0f, 900.0f}) {
      const LatentGrid grid{0.125f, bits};
      const std::vector<float> z = Noise(tokens * rank, scale);
      std::vector<float> back(z.size()), want(z.size());
      const std::vector<uint8_t> bytes = Pack(z, tokens, grid, kVideo);
      ASSERT_TRUE(UnpackLatents(bytes, tokens, grid, kVideo, back.data()).ok());
      ASSERT_TRUE(UnpackLatents(Pack(z, tokens, grid, LatentPacking::kFixed), tokens, grid,
                                LatentPacking::kFixed, want.data())
                      .ok());
      ASSERT_EQ(back, want) << tokens << " tokens, scale " << scale;
    }
  }
}

TEST_F(VideoCoderTest, ClampsInfinityAndTakesNanForZero) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> z = {infinity, -infinity, std::nanf(""), 1e30f};
  const LatentGrid grid{1.0f, {4}};
  std::vector<float> back(4);
  ASSERT_TRUE(UnpackLatents(Pack(z, 4, grid, kVideo), 4, grid, kVideo, back.data()).ok());
  EXPECT_THAT(back, ElementsAre(7.0f, -8.0f, 0.0f, 7.0f));
}

// Latents of falling energy, as encoders make them: HEVC takes little more than rANS, whose tables were made for them.
TEST_F(VideoCoderTest, TakesLittleMoreThanRans) {
  constexpr int64_t kTokens = 256, kRank = 96;
  std::vector<float> z = Noise(kTokens * kRank, 8.0f);
  LatentGrid grid{1.0f, std::vector<int>(kRank, 8)};
  for (int64_t i = 0; i < kRank; ++i) {
    const double fall = std::exp2(-6.0 * static_cast<double>(i) / kRank);
    for (int64_t t = 0; t < kTokens; ++t) z[t * kRank + i] *= static_cast<float>(fall);
    grid.decays.push_back(static_cast<float>(std::exp(-0.5 / std::max(0.1, 0.57 * 8 * fall))));
  }
  const size_t rans = Pack(z, kTokens, grid, LatentPacking::kRans).size();
  const size_t video = Pack(z, kTokens, grid, kVideo).size();
  EXPECT_LT(static_cast<double>(video), 1.35 * static_cast<double>(rans));
  EXPECT_LT(video, static_cast<size_t>(kTokens * kRank));  // it is a picture
}

TEST_F(VideoCoderTest, LeavesCodesThatAPictureWouldMakeLarger) {
  const LatentGrid grid{1.0f, {8, 12}};
  const std::vector<uint8_t> bytes = Pack({3.0f, -300.0f}, 1, grid, kVideo);
  EXPECT_THAT(bytes, ElementsAre(0, 3, 0xd4, 0xfe));  // FORMAT.md's example: -300 is 0xfed4
  std::vector<float> back(2);
  ASSERT_TRUE(UnpackLatents(bytes, 1, grid, kVideo, back.data()).ok());
  EXPECT_THAT(back, ElementsAre(3.0f, -300.0f));
}

// What fails is told from what does not pay: both leave codes as they are.
TEST_F(VideoCoderTest, CountsPicturesThatCannotBeEncoded) {
  constexpr int64_t kTokens = 300;
  const LatentGrid grid{0.5f, {6, 10, 4}};
  const std::vector<uint8_t> planes(PlaneBytes(grid.bits, kVideo, kTokens));
  std::vector<uint8_t> payload(VideoCoder::MaxBytes(grid.bits, kTokens));
  const int64_t before = GetVideoFailures().payloads;
  VideoCoder(grid).Encode(planes, kTokens, absl::MakeSpan(payload));
  EXPECT_EQ(payload[0], 1);
  EXPECT_EQ(Pack({3.0f, -300.0f}, 1, {1.0f, {8, 12}}, kVideo)[0], 0);
  EXPECT_EQ(GetVideoFailures().payloads, before);
  const VideoCoder failing(grid, [](const HevcPictures&) -> absl::StatusOr<std::vector<uint8_t>> {
    return absl::InternalError("libx265 has no memory");
  });
  EXPECT_EQ(failing.Encode(planes, kTokens, absl::MakeSpan(payload)), payload.size());
  EXPECT_EQ(payload[0], 0);
  EXPECT_EQ(GetVideoFailures().payloads, before + 1);
  EXPECT_EQ(GetVideoFailures().first, "libx265 has no memory");
}

// A payload that was made once, by FORMAT.md in another language and libx265 3.5: decoders go on to read it.
TEST_F(VideoCoderTest, ReadsThePayloadsOfOthers) {
  const std::vector<uint8_t> payload = {
      0x01, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
      0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
      0xac, 0x16, 0xc0, 0xc9, 0x1e, 0xf4, 0x13, 0xf1, 0x7e, 0x00, 0xbd, 0x70, 0x14, 0x6d, 0xd4, 0x88, 0x52,
      0x15, 0x30, 0xe7, 0x11, 0xbe, 0x2c, 0x6e, 0x74, 0xce, 0x4c, 0x18, 0x1b, 0x06, 0xc4, 0x94, 0x48, 0xa9,
      0x2c, 0x78, 0xf8, 0x15, 0x82, 0x11, 0x06, 0xa4, 0xe2, 0x80, 0x4e, 0x91, 0x25, 0xb4, 0x79, 0x47, 0xda,
      0x76, 0x2f, 0xb6, 0xcc, 0x80, 0x4a, 0x38, 0x39, 0xae, 0x1f, 0x56, 0x0b, 0x1a, 0x23, 0x1a, 0x94, 0x92,
      0x32, 0x5a, 0x62, 0x8c, 0xb5, 0xa2, 0x11, 0x69, 0xc4, 0xa1, 0xb1, 0x96, 0x7c, 0x00, 0x00, 0x03, 0x00,
      0x00, 0x03, 0x00, 0x00, 0x03, 0x00, 0x00, 0x03, 0x00, 0x00, 0x03, 0x00, 0x00, 0x20, 0x20};
  constexpr int kTokens = 22;
  const LatentGrid grid{1.0f, {1, 2, 4, 8, 12, 16}};
  std::vector<float> z(kTokens * 6);
  const absl::Status status = UnpackLatents(payload, kTokens, grid, kVideo, z.data());
  ASSERT_TRUE(status.ok()) << status;
  for (int t = 0; t < kTokens; ++t) {
    for (int i = 0; i < 6; ++i) {
      const int half = 1 << (grid.bits[i] - 1);
      const int want = ((7 * t + 3 * i) % 5 - 2) * std::max(1, 2 * half >> 7);
      EXPECT_EQ(z[6 * t + i], std::clamp(want, -half, half - 1)) << "latent " << i << ", token " << t;
    }
  }
}

TEST_F(VideoCoderTest, RefusesHostileBytes) {
  constexpr int64_t kTokens = 300;
  const LatentGrid grid{0.5f, {6, 10, 4}};
  const std::vector<float> z = Noise(3 * kTokens, 2.0f);
  const std::vector<uint8_t> bytes = Pack(z, kTokens, grid, kVideo);
  ASSERT_EQ(bytes[0], 1);
  std::vector<float> back(z.size());
  const auto complaint = [&](const std::vector<uint8_t>& payload) {
    const absl::Status status = UnpackLatents(payload, kTokens, grid, kVideo, back.data());
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    return status.ToString();
  };
  EXPECT_THAT(complaint({}), HasSubstr("want"));
  EXPECT_THAT(complaint({2, 0}), HasSubstr("want at most"));
  EXPECT_THAT(complaint({0, 1, 2}), HasSubstr("latents are 2 bytes, want 1200"));
  EXPECT_THAT(complaint({1, 1, 2}), HasSubstr("want more than 75"));
  std::vector<uint8_t> other(1 + 4 * kTokens);
  other[1] = 32;  // latent 0 has 6 bits
  EXPECT_THAT(complaint(other), HasSubstr("code 32 of latent 0, token 0"));
  other[1] = 0;
  other[1 + 2 * kTokens] = 2;  // high byte of latent 1: 512
  EXPECT_THAT(complaint(other), HasSubstr("code 512 of latent 1, token 0"));
  // A picture of latents that have more bits than these.
  const LatentGrid wide{0.5f, {8, 10, 8}};
  complaint(Pack(Noise(3 * kTokens, 60.0f), kTokens, wide, kVideo));
  // More tokens than there are: the others are padding. Fewer: padding is not flat.
  EXPECT_FALSE(UnpackLatents(bytes, kTokens - 1, grid, kVideo, back.data()).ok());
  std::vector<float> more(6 * kTokens);
  EXPECT_FALSE(UnpackLatents(bytes, 2 * kTokens, grid, kVideo, more.data()).ok());
  // What no picture holds, whoever asks.
  EXPECT_FALSE(UnpackLatents(bytes, kMaxPictureSide + 1, grid, kVideo, nullptr).ok());
}

TEST_F(VideoCoderTest, SaysWhereFramesAreTooLarge) {
  const LatentGrid grid{0.5f, std::vector<int>(200, 6)};
  EXPECT_TRUE(VideoCoder::CheckEncoder({grid}, 8192).ok());
  const absl::Status status = VideoCoder::CheckEncoder({grid}, 8193);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.ToString(), HasSubstr("8193 tokens of rank 200"));
  EXPECT_EQ(VideoCoder::CheckDecoder({LatentGrid{0.5f, std::vector<int>(9000, 6)}}).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace aludel
