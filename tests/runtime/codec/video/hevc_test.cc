#include "runtime/codec/video/hevc.h"

#include <malloc.h>

#include <algorithm>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

absl::StatusOr<HevcPictures> Decode(const std::vector<uint8_t>& slice, const HevcPictures& like) {
  HevcPictures picture = like;
  picture.samples.clear();
  if (const absl::Status status = DecodeHevc(slice, &picture); !status.ok()) return status;
  return picture;
}

// As Decode, in memory that malloc fills with other bytes for every `filling` but 0; sanitizers fill it as they do.
absl::StatusOr<HevcPictures> DecodeInMemoryOf(int filling, const std::vector<uint8_t>& slice,
                                              const HevcPictures& like) {
  mallopt(M_PERTURB, filling);
  absl::StatusOr<HevcPictures> picture = Decode(slice, like);
  mallopt(M_PERTURB, 0);
  return picture;
}

// Failures tell the seed.
class Hevc : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(LoadHevcEncoder().ok()) << LoadHevcEncoder();
    ASSERT_TRUE(LoadHevcDecoder().ok()) << LoadHevcDecoder();
  }
  // Of `width` x `height` random samples in a padded picture.
  HevcPictures Noise(int width, int height, int spread) {
    std::uniform_int_distribution<int> sample(-spread, spread);
    HevcPictures picture = PaddedPicture(width, height);
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) {
        picture.samples[static_cast<size_t>(y) * picture.width + x] =
            static_cast<uint8_t>(std::clamp(128 + sample(random_), 0, 255));
      }
    }
    return picture;
  }

  const unsigned seed_ = std::random_device{}();
  const ::testing::ScopedTrace trace_{__FILE__, __LINE__, absl::StrCat("seed ", seed_)};
  std::mt19937_64 random_{seed_};
};

TEST_F(Hevc, GivesBackEverySample) {
  const std::pair<int, int> sizes[] = {{1, 1},    {144, 144},  {145, 7},  {3, 200},
                                       {256, 40}, {1000, 333}, {8192, 2}, {2, 8192}};
  for (const auto& [width, height] : sizes) {
    for (const int spread : {0, 1, 20, 400}) {
      const HevcPictures picture = Noise(width, height, spread);
      const auto slice = EncodeHevc(picture);
      ASSERT_TRUE(slice.ok()) << slice.status();
      const auto back = Decode(*slice, picture);
      ASSERT_TRUE(back.ok()) << width << " x " << height << ", spread " << spread << ": " << back.status();
      ASSERT_TRUE(back->samples == picture.samples) << width << " x " << height << ", spread " << spread;
    }
  }
}

TEST_F(Hevc, MakesTheSameStreamOnAllThreads) {
  const HevcPictures picture = Noise(300, 90, 30);
  const auto want = EncodeHevc(picture);
  ASSERT_TRUE(want.ok()) << want.status();
  std::vector<int> same(4);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < same.size(); ++i) {
    threads.emplace_back([&, i] {
      for (int round = 0; round < 5; ++round) {
        const auto slice = EncodeHevc(picture);
        const auto back = slice.ok() ? Decode(*slice, picture) : slice.status();
        same[i] += slice.ok() && *slice == *want && back.ok() && back->samples == picture.samples ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(same, ::testing::Each(5));
}

// 6.9 KB of each of these are libx265's (runtime/calibrate/README.md): 1.2 KB of an encoder, the rest of a filter that is off.
// LeakSanitizer is told to pass over them. Where malloc is a sanitizer's, this sees none of it.
TEST_F(Hevc, LosesNoMoreThanIsKnown) {
  constexpr int kPictures = 100;
  constexpr double kMostBytes = 8000;
  const HevcPictures picture = Noise(144, 144, 20);
  const auto encode = [&picture] {
    for (int i = 0; i < kPictures; ++i) ASSERT_TRUE(EncodeHevc(picture).ok());
  };
  const auto in_use = [] {
    const struct mallinfo2 memory = mallinfo2();
    return static_cast<double>(memory.uordblks) + static_cast<double>(memory.hblkhd);
  };
  encode();  // what is kept for the next is there then
  const double before = in_use();
  encode();
  EXPECT_LT(in_use() - before, kPictures * kMostBytes);
}

TEST_F(Hevc, RefusesWhatIsNoSlice) {
  const HevcPictures picture = Noise(200, 100, 10);
  const std::vector<uint8_t> slice = EncodeHevc(picture).value();
  EXPECT_EQ(Decode({}, picture).status().code(), absl::StatusCode::kDataLoss);
  std::vector<uint8_t> other = slice;
  other[0] &= 0x7f;
  EXPECT_THAT(Decode(other, picture).status().ToString(), HasSubstr("not its picture's first"));
  // A second unit, which could be a parameter set of another size.
  other = slice;
  other.insert(other.end(), {0, 0, 1, 0x42, 1, 1});
  EXPECT_THAT(Decode(other, picture).status().ToString(), HasSubstr("start code"));
  other = slice;
  other.push_back(0);
  EXPECT_EQ(Decode(other, picture).status().code(), absl::StatusCode::kDataLoss);
  // That of a smaller picture leaves blocks out, that of a larger one has too many.
  EXPECT_EQ(Decode(slice, PaddedPicture(400, 100)).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Decode(slice, PaddedPicture(100, 100)).status().code(), absl::StatusCode::kDataLoss);
}

// libavcodec reads zeros behind a slice that was cut, and may take damage for other samples: frames have a checksum. But what it
// gives comes of the bytes alone, none of it from memory that was there before: here another picture, and other fillings.
TEST_F(Hevc, SeesSomeDamageAndNeverShowsOldMemory) {
  const HevcPictures picture = Noise(200, 100, 60);
  const std::vector<uint8_t> slice = EncodeHevc(picture).value();
  const std::vector<uint8_t> unlike = EncodeHevc(Noise(200, 100, 400)).value();
  int seen = 0;
  constexpr int kRounds = 60;
  for (int i = 0; i < kRounds; ++i) {
    std::vector<uint8_t> cut(slice.begin(), slice.begin() + 1 + random_() % (slice.size() - 1));
    std::vector<uint8_t> turned = slice;
    turned[random_() % turned.size()] ^= 1 << random_() % 8;
    for (const std::vector<uint8_t>& damaged : {cut, turned}) {
      const auto back = DecodeInMemoryOf(0x55, damaged, picture);
      seen += back.ok() ? 0 : 1;
      ASSERT_TRUE(Decode(unlike, picture).ok());
      const auto again = DecodeInMemoryOf(0x99, damaged, picture);
      ASSERT_EQ(back.ok(), again.ok()) << back.status() << " " << again.status();
      if (!back.ok()) continue;
      EXPECT_EQ(back->samples.size(), picture.samples.size());
      EXPECT_TRUE(back->samples == again->samples);
    }
  }
  EXPECT_GT(seen, kRounds / 10);
}

// Pictures that resemble the one before, and what has nothing to do with it.
TEST_F(Hevc, GivesBackSequencesOfThreePlanes) {
  for (const auto& [width, height, count] :
       {std::tuple(16, 16, 1), std::tuple(32, 32, 40), std::tuple(64, 40, 7), std::tuple(144, 152, 5),
        std::tuple(32, 64, 200)}) {
    for (const int spread : {0, 3, 256}) {
      HevcPictures pictures{width, height, count, /*three_planes=*/true, {}};
      const size_t picture_bytes = 3 * pictures.plane_bytes();
      for (size_t i = 0; i < picture_bytes * count; ++i) {
        const int before =
            i < picture_bytes ? static_cast<int>(random_() % 256) : pictures.samples[i - picture_bytes];
        const int change = spread == 0 ? 0 : static_cast<int>(random_() % (2 * spread + 1)) - spread;
        pictures.samples.push_back(static_cast<uint8_t>(before + change));
      }
      const auto slices = EncodeHevcSequence(pictures);
      ASSERT_TRUE(slices.ok()) << slices.status();
      std::vector<absl::Span<const uint8_t>> spans(slices->begin(), slices->end());
      HevcPictures back{width, height, count, /*three_planes=*/true, {}};
      const absl::Status status = DecodeHevcSequence(spans, &back);
      ASSERT_TRUE(status.ok()) << status << " " << width << " x " << height << " x " << count;
      ASSERT_TRUE(back.samples == pictures.samples) << width << " x " << height << " x " << count;
      spans.pop_back();
      EXPECT_EQ(DecodeHevcSequence(spans, &back).code(), absl::StatusCode::kDataLoss);
    }
  }
}

TEST_F(Hevc, RefusesSequencesOfSmallPictures) {
  HevcPictures pictures{16, 32, 2, /*three_planes=*/true, std::vector<uint8_t>(2 * 3 * 16 * 32)};
  EXPECT_EQ(EncodeHevcSequence(pictures).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Pictures, AreBounded) {
  EXPECT_TRUE(FitsPicture(1, 1));
  EXPECT_TRUE(FitsPicture(8192, 4096));
  EXPECT_FALSE(FitsPicture(8192, 4097));
  EXPECT_FALSE(FitsPicture(8193, 1));
  EXPECT_FALSE(FitsPicture(1, 8193));
  EXPECT_FALSE(FitsPicture(0, 1));
  const HevcPictures picture = PaddedPicture(145, 7);
  EXPECT_EQ(picture.width, 152);
  EXPECT_EQ(picture.height, kMinPictureSide);
  EXPECT_THAT(picture.samples, ::testing::AllOf(::testing::SizeIs(152 * 144), ::testing::Each(128)));
}

}  // namespace
}  // namespace aludel
