#include "runtime/codec/aludel/embedded_coder.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/codec/aludel/latent_packing.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

// Failures tell the seed.
struct Random {
  const unsigned seed = std::random_device{}();
  const ::testing::ScopedTrace trace{__FILE__, __LINE__, absl::StrCat("seed ", seed)};
  std::mt19937_64 engine{seed};
};

// Latents of their own deviations, in steps of 1.
struct Sample {
  int64_t tokens = 0;
  LatentGrid grid;
  std::vector<float> z;  // [tokens][rank]

  Sample(std::mt19937_64& random, int64_t count, const std::vector<double>& deviations, int planes)
      : tokens(count), grid{1.0f, {}, {}, planes} {
    for (const double deviation : deviations) {
      grid.bits.push_back(std::clamp(static_cast<int>(std::ceil(std::log2(11 * deviation))), 2, 16));
      grid.decays.push_back(std::max(kMinDecay, static_cast<float>(std::exp(-0.5 / (0.57 * deviation)))));
    }
    std::normal_distribution<double> normal;
    for (int64_t t = 0; t < tokens; ++t) {
      for (const double deviation : deviations) z.push_back(static_cast<float>(deviation * normal(random)));
    }
  }

  std::vector<uint8_t> Pack(LatentPacking packing = LatentPacking::kEmbedded, int sent = 0) const {
    std::vector<uint8_t> bytes(MaxPackedBytes(grid, packing, tokens));
    const auto coder = MakeLatentCoder(grid, packing, sent);
    bytes.resize(PackLatents(z.data(), tokens, grid, packing, coder.get(), absl::MakeSpan(bytes)));
    return bytes;
  }
  std::vector<float> Unpack(absl::Span<const uint8_t> bytes,
                            LatentPacking packing = LatentPacking::kEmbedded) const {
    std::vector<float> back(z.size());
    const absl::Status status = UnpackLatents(bytes, tokens, grid, packing, back.data());
    EXPECT_TRUE(status.ok()) << status;
    return back;
  }
  absl::Status Status(absl::Span<const uint8_t> bytes) const {
    std::vector<float> back(z.size());
    return UnpackLatents(bytes, tokens, grid, LatentPacking::kEmbedded, back.data());
  }
  double ErrorOf(const std::vector<float>& back) const {
    double sum = 0;
    for (size_t i = 0; i < z.size(); ++i) sum += std::pow(double{back[i]} - z[i], 2);
    return sum / static_cast<double>(z.size());
  }
};

std::vector<double> Falling(double most, double least, int count) {
  std::vector<double> deviations;
  for (int i = 0; i < count; ++i) deviations.push_back(most * std::pow(least / most, i / (count - 1.0)));
  return deviations;
}

TEST(EmbeddedCoder, WholePayloadsHoldTheCodesOfRans) {
  Random source;
  for (const int64_t tokens : {1, 2, 33, 500}) {
    for (const int planes : {1, 2, 5, 8}) {
      const Sample sample(source.engine, tokens, Falling(4000, 0.05, 41), planes);
      EXPECT_EQ(sample.Unpack(sample.Pack()),
                sample.Unpack(sample.Pack(LatentPacking::kRans), LatentPacking::kRans))
          << tokens << " tokens, " << planes << " planes";
    }
  }
}

// FORMAT.md's arithmetic in double: what a code is known to be behind some planes, and its mean.
TEST(EmbeddedCoder, CutPayloadsGiveTheMeansOfWhatCodesMayBe) {
  Random source;
  constexpr int kPlanes = 5;
  const Sample sample(source.engine, 300, Falling(900, 0.2, 24), kPlanes);
  const std::vector<uint8_t> whole = sample.Pack();
  const std::vector<float> codes = sample.Unpack(whole);
  for (int planes = 1; planes < kPlanes; ++planes) {
    const int level = kPlanes - planes;
    const std::vector<float> cut = sample.Unpack(TruncatePlanes(whole, planes).value());
    for (size_t i = 0; i < cut.size(); ++i) {
      const double width = std::exp2(level);
      const double magnitude = std::floor(std::abs(codes[i]) / width);
      if (magnitude == 0) {
        ASSERT_EQ(cut[i], 0) << codes[i];
        continue;
      }
      const double ratio = std::pow(sample.grid.decays[i % sample.grid.decays.size()], 2);
      double above = 0, weights = 0;
      for (int j = 0; j < static_cast<int>(width); ++j) {
        above += j * std::pow(ratio, j);
        weights += std::pow(ratio, j);
      }
      const double want = std::copysign(magnitude * width + above / weights, codes[i]);
      ASSERT_NEAR(cut[i], want, width / 16 + 1e-3) << codes[i] << " without " << level << " bits";
    }
  }
}

TEST(EmbeddedCoder, PrefixesAreWhatAnEncoderOfFewerPlanesSends) {
  Random source;
  const Sample sample(source.engine, 40, Falling(60, 0.1, 30), 6);
  const std::vector<uint8_t> whole = sample.Pack();
  size_t before = 0;
  for (int planes = 1; planes <= 7; ++planes) {
    const absl::Span<const uint8_t> cut = TruncatePlanes(whole, planes).value();
    EXPECT_THAT(cut, ElementsAreArray(sample.Pack(LatentPacking::kEmbedded, std::min(planes, 6))));
    EXPECT_EQ(cut.data(), whole.data());
    EXPECT_EQ(cut.size() > before, planes <= 6);
    before = cut.size();
  }
}

// What a cut costs beside latents that were quantized to its error at once: bytes at the same squared error.
TEST(EmbeddedCoder, CutPayloadsCostLittleMoreThanThoseOfTheirError) {
  Random source;
  constexpr int kPlanes = 5;
  const std::vector<double> deviations = Falling(40, 0.5, 200);
  const Sample sample(source.engine, 400, deviations, kPlanes);
  const std::vector<uint8_t> whole = sample.Pack();
  // Codes at once, on a fine scale of steps: logarithms of error, and bytes.
  std::vector<std::pair<double, double>> direct;
  for (double step = 0.7; step < 64; step *= 1.1) {
    std::vector<double> scaled = deviations;
    for (double& deviation : scaled) deviation = std::max(0.02, deviation / step);
    Sample at = sample;
    at.grid = Sample(source.engine, 1, scaled, kPlanes).grid;
    at.grid.step = static_cast<float>(step);
    const std::vector<uint8_t> bytes = at.Pack(LatentPacking::kRans);
    direct.emplace_back(std::log(at.ErrorOf(at.Unpack(bytes, LatentPacking::kRans))), bytes.size());
  }
  for (int planes = 1; planes <= kPlanes; ++planes) {
    const absl::Span<const uint8_t> cut = TruncatePlanes(whole, planes).value();
    const double error = std::log(sample.ErrorOf(sample.Unpack(cut)));
    size_t i = 1;
    while (i + 1 < direct.size() && direct[i].first < error) ++i;
    const auto [low, more] = direct[i - 1];
    const auto [high, fewer] = direct[i];
    const double want = more + (fewer - more) * (error - low) / (high - low);
    const double ratio = static_cast<double>(cut.size()) / want;
    RecordProperty(absl::StrCat("planes_", planes), absl::StrCat(cut.size(), " bytes, ", ratio));
    EXPECT_LT(ratio, 1.05) << planes << " planes, " << cut.size() << " bytes";
  }
}

TEST(EmbeddedCoder, RefusesCutsWithinAPlaneAndWhatFollowsTheLast) {
  Random source;
  // Many symbols: several lanes, so that a plane's own end is checked.
  const Sample sample(source.engine, 2100, {3, 20}, 3);
  const std::vector<uint8_t> whole = sample.Pack();
  std::vector<size_t> ends;
  for (int planes = 1; planes <= 3; ++planes) ends.push_back(TruncatePlanes(whole, planes)->size());
  for (size_t size = 0; size <= whole.size(); ++size) {
    const auto part = absl::MakeConstSpan(whole).first(size);
    const bool valid = std::find(ends.begin(), ends.end(), size) != ends.end();
    ASSERT_EQ(TruncatePlanes(part, 1).ok(), valid) << size;
    ASSERT_EQ(sample.Status(part).code(), valid ? absl::StatusCode::kOk : absl::StatusCode::kDataLoss)
        << size;
  }
  std::vector<uint8_t> longer = whole;
  longer.push_back(0);
  EXPECT_THAT(sample.Status(longer).ToString(), HasSubstr("1 bytes follow the last of 3 planes"));
  // A length has one form: 0 in two bytes is none.
  EXPECT_THAT(sample.Status({0x80, 0x00}).ToString(),
              HasSubstr("no plane of latents begins where 2 bytes are left"));
  EXPECT_THAT(sample.Status({0x05, 0x00}).ToString(), HasSubstr("is to have 5 bytes, 1 are left"));
  EXPECT_FALSE(TruncatePlanes({0x80, 0x80, 0x80, 0x80, 0x80, 0x01}, 1).ok());
  std::vector<uint8_t> damaged(whole.begin(), whole.begin() + static_cast<int64_t>(ends[0]));
  damaged.insert(damaged.end(), {3, 0, 0, 0});
  EXPECT_THAT(sample.Status(damaged).ToString(), HasSubstr("plane 1 of latents: coded symbols are 3 bytes"));
}

// Refinements that no encoder writes, behind a true base: what is known of a code stays so, and what lies beyond its
// range ends there.
TEST(EmbeddedCoder, RandomRefinementsKeepWhatEarlierPlanesSay) {
  Random source;
  constexpr int kPlanes = 4;
  int opened = 0, beyond = 0;
  for (const int64_t tokens : {1, 7, 40}) {
    for (int round = 0; round < 200; ++round) {
      Sample sample(source.engine, tokens, {0.1, 1, 5, 30, 500, 3000}, kPlanes);
      // The least codes, whose magnitudes have no room for more.
      for (float& z : sample.z) z = source.engine() % 4 == 0 ? -1e6f : z;
      const std::vector<uint8_t> whole = sample.Pack();
      const absl::Span<const uint8_t> base = TruncatePlanes(whole, 1).value();
      std::vector<uint8_t> bytes(base.begin(), base.end());
      std::vector<float> before = sample.Unpack(bytes);
      for (int level = kPlanes - 2; level >= 0; --level) {
        // About what so few symbols take: what is longer is no stream of theirs.
        const size_t length = source.engine() % (2 + tokens / 3);
        bytes.push_back(static_cast<uint8_t>(length));
        for (size_t i = 0; i < length; ++i) bytes.push_back(static_cast<uint8_t>(source.engine()));
        std::vector<float> z(sample.z.size());
        const absl::Status status =
            UnpackLatents(bytes, tokens, sample.grid, LatentPacking::kEmbedded, z.data());
        if (!status.ok()) {
          ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss);
          break;
        }
        ++opened;
        for (size_t i = 0; i < z.size(); ++i) {
          const int bits = sample.grid.bits[i % sample.grid.bits.size()];
          const double least = -std::exp2(bits - 1);
          ASSERT_GE(z[i], least);
          ASSERT_LT(z[i], -least);
          if (before[i] == 0) continue;
          ASSERT_EQ(z[i] < 0, before[i] < 0) << before[i] << " became " << z[i] << " of " << bits << " bits";
          ASSERT_NE(z[i], 0) << before[i];
          beyond += static_cast<int>(z[i] == least);
          // Of whole codes as many as had bits enough for the base.
          const double width = std::exp2(level + 1);
          if (bits < kPlanes) continue;
          ASSERT_EQ(std::floor(std::abs(z[i]) / width), std::floor(std::abs(before[i]) / width))
              << before[i] << " became " << z[i] << " of " << bits << " bits";
        }
        before = z;
      }
    }
  }
  EXPECT_GT(opened, 100);
  EXPECT_GT(beyond, 100);
}

TEST(EmbeddedCoder, ReadsItsOwnNumberOfPlanesAlone) {
  Random source;
  const Sample sample(source.engine, 30, Falling(60, 0.1, 20), 3);
  const std::vector<uint8_t> whole = sample.Pack();
  for (int own = 1; own <= 3; ++own) {
    const auto coder = MakeLatentCoder(sample.grid, LatentPacking::kEmbedded, own);
    for (int planes = 1; planes <= 3; ++planes) {
      std::vector<uint8_t> opened;
      const absl::Status status =
          coder->Decode(TruncatePlanes(whole, planes).value(), sample.tokens, &opened).status();
      EXPECT_EQ(status.code(), planes == own ? absl::StatusCode::kOk : absl::StatusCode::kDataLoss)
          << planes << " planes, a coder of " << own;
      const std::string want = planes < own ? absl::StrCat("latents are ", planes, " planes, want ", own)
                                            : absl::StrCat("follow the last of ", own, " planes");
      if (planes != own) {
        EXPECT_THAT(status.ToString(), HasSubstr(want));
      }
    }
  }
}

// Payloads of codes that take the most stay below the bound, and come close to it.
TEST(EmbeddedCoder, BoundIsNotFarAboveTheCostliestCodes) {
  Random source;
  for (const int planes : {1, 4, 5, 8}) {
    Sample sample(source.engine, 256, Falling(20, 0.3, 120), planes);
    const size_t bound = MaxPackedBytes(sample.grid, LatentPacking::kEmbedded, sample.tokens);
    // Receivers reserve so much.
    const size_t rans = MaxPackedBytes(sample.grid, LatentPacking::kRans, sample.tokens);
    RecordProperty(absl::StrCat("planes_", planes), absl::StrCat(bound, " bytes, rans ", rans));
    EXPECT_LT(static_cast<double>(bound), 2.0 * static_cast<double>(rans)) << planes << " planes";
    // The costliest of each latent, one latent at a time.
    const size_t rank = sample.grid.bits.size();
    for (size_t i = 0; i < rank; ++i) {
      Sample one(source.engine, 1, {1}, planes);
      one.grid.bits = {sample.grid.bits[i]};
      one.grid.decays = {sample.grid.decays[i]};
      one.tokens = 64;
      const int half = 1 << (one.grid.bits[0] - 1);
      size_t least = 0;
      for (int code = -half; code < half; ++code) {
        one.z.assign(64, static_cast<float>(code));
        const size_t bytes = one.Pack().size();
        if (bytes <= least) continue;
        least = bytes;
        for (int64_t t = 0; t < sample.tokens; ++t) sample.z[t * rank + i] = static_cast<float>(code);
      }
    }
    const size_t most = sample.Pack().size();
    EXPECT_LE(most, bound) << planes << " planes";
    EXPECT_GT(static_cast<double>(most), 0.7 * static_cast<double>(bound)) << planes << " planes";
  }
}

TEST(EmbeddedCoder, HasTheBytesOfTheDocument) {
  // FORMAT.md's example: two tokens, latents of 3 and 10 bits, step 0.5, three planes.
  Random source;
  Sample sample(source.engine, 2, {1, 1}, 3);
  sample.grid = {0.5f, {3, 10}, {0.5f, 0.99f}, 3};
  sample.z = {1.0f, -100.0f, -1.5f, 100.0f};
  EXPECT_THAT(sample.Pack(), ElementsAre(0x03, 0x97, 0xdb, 0x14, 0x02, 0x9e, 0xad, 0x02, 0x00, 0x10));
  EXPECT_THAT(sample.Unpack(TruncatePlanes(sample.Pack(), 1).value()),
              ElementsAre(0.0f, -100.75f, 0.0f, 100.75f));
}

// Probabilities of the logistic distribution in double.
double AtAndAbove(double decay, double code) {
  const double scale = -0.5 / std::log(decay);
  return 1 / (1 + std::exp((code - 0.5) / scale));
}

TEST(LatentTables, FrequenciesOfCutCodesAreTheLogisticOnes) {
  for (const int dropped : {0, 1, 3, 7}) {
    for (const float decay : {0.05f, 0.6f, 0.97f, 0.995f}) {
      const int bits = dropped + 8;
      const std::vector<uint16_t> frequencies = LatentFrequencies(bits, decay, dropped);
      ASSERT_EQ(std::accumulate(frequencies.begin(), frequencies.end(), 0), static_cast<int>(kRansTotal));
      const double width = std::exp2(dropped);
      const double most = *std::max_element(frequencies.begin(), frequencies.end());
      for (int m = -127; m < 127; ++m) {
        const double low = std::abs(m) * width;
        double want = AtAndAbove(decay, low) - AtAndAbove(decay, low + width);
        if (m == 0) want = 1 - 2 * AtAndAbove(decay, width);
        const double got = frequencies[static_cast<uint8_t>(m)];
        // Rounded, but for the largest, from which the least frequency of 1 takes what it needs.
        if (got >= 15 * most / 16 - 1) continue;
        EXPECT_NEAR(got, std::max(1.0, want * kRansTotal), 0.51) << dropped << " " << decay << " at " << m;
      }
    }
  }
}

TEST(LatentTables, RefinementsAreNearTheLogisticOnes) {
  for (int level = 0; level < 8; ++level) {
    for (const double decay : {0.02, 0.4, 0.8, 0.95, 0.99, 0.9999}) {
      const RefinementChoice tables = ChooseRefinement(static_cast<float>(decay), level);
      const auto odds = [](int table) {
        return Refinements()[table].coder(1).frequency / double{kRansTotal};
      };
      const auto above = [&](double times) {
        return AtAndAbove(static_cast<float>(decay), times * std::exp2(level));
      };
      const double becomes = (above(1) - above(2)) / (1 - 2 * above(2));
      EXPECT_NEAR(odds(tables.zero), becomes, 0.18 * becomes + 1.0 / kRansTotal) << level << " " << decay;
      EXPECT_EQ(Refinements()[tables.zero].coder(1).frequency, Refinements()[tables.zero].coder(2).frequency);
      for (const auto& [table, from] : {std::pair{tables.one, 2.0}, {tables.more, 4.0}}) {
        if (above(from) < 1e-7) continue;
        const double bit = (above(from + 1) - above(from + 2)) / (above(from) - above(from + 2));
        EXPECT_NEAR(odds(table), std::max(bit, 0.125), 0.1 * bit + 0.001) << level << " " << decay;
      }
    }
  }
}

}  // namespace
}  // namespace aludel
