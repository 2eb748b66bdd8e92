#include "runtime/codec/aludel/plane_upgrades.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/codec/aludel/embedded_coder.h"
#include "runtime/codec/aludel/encode.h"
#include "runtime/codec/aludel/latent_packing.h"
#include "runtime/codec/aludel/reconstruct.h"
#include "runtime/codec/handoff.h"
#include "runtime/evaluate/in_process_handoff.h"
#include "tests/testing/test_model.h"

namespace aludel {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

// Failures tell the seed.
struct Random {
  const unsigned seed = std::random_device{}();
  const ::testing::ScopedTrace trace{__FILE__, __LINE__, absl::StrCat("seed ", seed)};
  std::mt19937_64 engine{seed};
};

// A whole frame of random latents.
std::vector<uint8_t> RandomPayload(std::mt19937_64& random, int64_t tokens, int planes) {
  const LatentGrid grid{0.5f, {3, 6, 9, 12}, {0.5f, 0.8f, 0.95f, 0.99f}, planes};
  std::normal_distribution<float> normal(0, 8);
  std::vector<float> z(static_cast<size_t>(tokens) * grid.bits.size());
  for (float& latent : z) latent = normal(random);
  std::vector<uint8_t> bytes(MaxPackedBytes(grid, LatentPacking::kEmbedded, tokens));
  bytes.resize(PackLatents(z.data(), tokens, grid, LatentPacking::kEmbedded, absl::MakeSpan(bytes)));
  return bytes;
}

FrameCoverage Coverage(int first_layer, int layers, int token_begin, int tokens, int plane = 0) {
  return {static_cast<uint16_t>(first_layer), static_cast<uint16_t>(layers), static_cast<uint16_t>(plane),
          static_cast<uint32_t>(token_begin), static_cast<uint32_t>(tokens)};
}

TEST(SplitPlanes, BothPartsAreThePayloadByteByByte) {
  Random source;
  for (const int planes : {2, 5, 8}) {
    for (const int64_t tokens : {1, 7, 300}) {
      const std::vector<uint8_t> whole = RandomPayload(source.engine, tokens, planes);
      EXPECT_EQ(CountPlanes(whole).value(), planes);
      for (int base = 1; base < planes; ++base) {
        const auto split = SplitPlanes(whole, base);
        ASSERT_TRUE(split.ok()) << split.status();
        EXPECT_EQ(CountPlanes(split->base).value(), base);
        EXPECT_EQ(CountPlanes(split->upgrade).value(), planes - base);
        EXPECT_THAT(split->base, ElementsAreArray(TruncatePlanes(whole, base).value()));
        PlaneUpgrades upgrades(base, planes);
        const auto count = static_cast<int>(tokens);
        ASSERT_TRUE(upgrades.AddBase(Coverage(2, 3, 16, count), split->base).ok());
        EXPECT_EQ(upgrades.waiting(), 1);
        const auto joined = upgrades.Join(Coverage(2, 3, 16, count, base), split->upgrade);
        ASSERT_TRUE(joined.ok()) << joined.status();
        EXPECT_THAT(*joined, ElementsAreArray(whole));
        EXPECT_EQ(upgrades.waiting(), 0);
      }
    }
  }
}

TEST(SplitPlanes, RefusesWhatHasNothingBehindTheBase) {
  Random source;
  const std::vector<uint8_t> whole = RandomPayload(source.engine, 9, 3);
  for (const int base : {3, 4}) {
    EXPECT_THAT(SplitPlanes(whole, base).status().ToString(),
                HasSubstr(absl::StrCat("has no plane behind the first ", base)));
  }
  const auto cut = absl::MakeConstSpan(whole).first(whole.size() - 1);
  EXPECT_EQ(SplitPlanes(cut, 1).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(SplitPlanes({}, 1).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(CountPlanes({}).status().code(), absl::StatusCode::kDataLoss);
}

TEST(PlaneUpgrades, RefuseWhatIsNoWholeBase) {
  Random source;
  const std::vector<uint8_t> whole = RandomPayload(source.engine, 8, 4);
  PlaneUpgrades upgrades(2, 4);
  const FrameCoverage place = Coverage(0, 2, 0, 8);
  for (const int planes : {1, 3, 4}) {
    const absl::Status status = upgrades.AddBase(place, TruncatePlanes(whole, planes).value());
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(
        std::string(status.message()),
        HasSubstr(absl::StrCat("layers [0, 2), tokens [0, 8) holds planes [0, ", planes, "), want [0, 2)")));
  }
  const absl::Span<const uint8_t> base = TruncatePlanes(whole, 2).value();
  EXPECT_THAT(upgrades.AddBase(Coverage(0, 2, 0, 8, 1), base).ToString(),
              HasSubstr("holds planes [1, 3), want [0, 2)"));
  EXPECT_EQ(upgrades.AddBase(place, base.first(base.size() - 1)).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(upgrades.waiting(), 0);
  EXPECT_TRUE(upgrades.AddBase(place, base).ok());
  EXPECT_EQ(upgrades.AddBase(Coverage(0, 1, 0, 4), base).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(upgrades.waiting(), 1);
}

TEST(PlaneUpgrades, RefuseUpgradesOfOtherPlacesAndPlanesAndASecondOne) {
  Random source;
  const std::vector<uint8_t> whole = RandomPayload(source.engine, 8, 4);
  const PlaneSplit split = SplitPlanes(whole, 2).value();
  PlaneUpgrades upgrades(2, 4);
  ASSERT_TRUE(upgrades.AddBase(Coverage(1, 2, 16, 8), split.base).ok());
  ASSERT_TRUE(upgrades.AddBase(Coverage(3, 2, 16, 8), split.base).ok());
  const FrameCoverage right = Coverage(1, 2, 16, 8, 2);
  for (const FrameCoverage& wrong :
       {Coverage(2, 2, 16, 8, 2), Coverage(1, 1, 16, 8, 2), Coverage(1, 4, 16, 8, 2),
        Coverage(1, 2, 15, 8, 2), Coverage(1, 2, 16, 7, 2), Coverage(1, 2, 16, 9, 2),
        Coverage(1, 2, 24, 8, 2)}) {
    const absl::Status status = upgrades.Join(wrong, split.upgrade).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr("no base frame is of these"));
  }
  for (const int plane : {0, 1, 3, 4}) {
    EXPECT_THAT(upgrades.Join(Coverage(1, 2, 16, 8, plane), split.upgrade).status().ToString(),
                HasSubstr(absl::StrCat("holds planes [", plane, ", ", plane + 2, "), want [2, 4)")));
  }
  // Too few planes, too many, and no whole ones.
  const absl::Span<const uint8_t> one = TruncatePlanes(split.upgrade, 1).value();
  std::vector<uint8_t> three(split.upgrade.begin(), split.upgrade.end());
  three.insert(three.end(), one.begin(), one.end());
  for (const auto& payload : {one, absl::MakeConstSpan(three), split.upgrade.first(split.upgrade.size() - 1),
                              absl::Span<const uint8_t>()}) {
    EXPECT_EQ(upgrades.Join(right, payload).status().code(), absl::StatusCode::kDataLoss) << payload.size();
  }
  EXPECT_EQ(upgrades.waiting(), 2);
  // None of it has changed anything.
  EXPECT_THAT(upgrades.Join(right, split.upgrade).value(), ElementsAreArray(whole));
  EXPECT_EQ(upgrades.Join(right, split.upgrade).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(upgrades.waiting(), 1);
}

// The pages of a handoff's tokens, as they are in memory.
class Pages {
 public:
  Pages(TestModel& side, int64_t tokens) {
    const KvLayout& layout = side.pool().layout();
    for (int layer = 0; layer < layout.layers; ++layer) {
      rows_.emplace_back();
      for (int64_t token = 0; token < tokens; ++token) rows_.back().push_back(Row(side, layer, token));
    }
  }
  const std::string& row(int layer, int64_t token) const { return rows_[layer][token]; }
  bool operator==(const Pages& other) const { return rows_ == other.rows_; }

 private:
  // K and V of all heads.
  static std::string Row(TestModel& side, int layer, int64_t token) {
    const PagedKv pages = side.pool().Layer(layer);
    const BlockId block = side.table().ids()[token / pages.block_tokens];
    const size_t bytes = pages.head_dim * SizeOf(pages.dtype);
    std::string row;
    for (const void* plane : {pages.k, pages.v}) {
      for (int head = 0; head < pages.kv_heads; ++head) {
        const int64_t at =
            (int64_t{block} * pages.kv_heads + head) * pages.block_tokens + token % pages.block_tokens;
        row.append(static_cast<const char*>(plane) + static_cast<size_t>(at) * bytes, bytes);
      }
    }
    return row;
  }

  std::vector<std::vector<std::string>> rows_;  // [layers][tokens]
};

// A model with codes of one latent for each value of K and V, finely quantized.
class UpgradedPages : public ::testing::TestWithParam<int> {
 protected:
  static constexpr int64_t kTokens = 21;  // the last is not handed over; frames are of 8 tokens
  static constexpr int kPlanes = 4;
  static constexpr int kBasePlanes = 2;

  UpgradedPages() {
    const ModelConfig& config = side_.model().config();
    shape_.recomputed_layers = GetParam();
    shape_.packing = LatentPacking::kEmbedded;
    const int64_t side = shape_.has_side() ? config.hidden : 0;
    const int64_t rank = 2 * config.kv_dim();
    const LatentGrid grid{1.0f / 64, std::vector<int>(rank, 12), std::vector<float>(rank, 0.98f), kPlanes};
    for (int layer = shape_.recomputed_layers + 1; layer < config.layers; ++layer) {
      shape_.groups.push_back({layer, 1, rank});
      AludelEncoderGroup encoder{HostMatrix::Zeros(rank, rank), HostMatrix::Zeros(side > 0 ? rank : 0, side),
                                 std::vector<float>(rank), grid};
      AludelDecoderGroup decoder;
      decoder.grid = grid;
      decoder.linear = HostMatrix::Zeros(rank, side + rank);
      decoder.bias.assign(rank, 0.0f);
      for (int64_t i = 0; i < rank; ++i) {
        encoder.matrix.row(i)[i] = 1.0f;
        decoder.linear.row(i)[side + i] = 1.0f;
      }
      encoder_.push_back(std::move(encoder));
      decoder_.groups.push_back(std::move(decoder));
    }
    for (int i = 0; i < kTokens; ++i) prompt_.push_back(3 + 5 * i % 70);
  }

  std::unique_ptr<DecoderFactory> Decoders(int planes, int base_planes = 0) {
    AludelShape shape = shape_;
    shape.planes = planes;
    return MakeAludelDecoders("keep", "", shape, decoder_, side_.model(), base_planes).value();
  }
  std::vector<WireFrame> Encode() {
    const auto encoders = MakeAludelEncoders("keep", "", shape_, encoder_, side_.model()).value();
    const auto pool =
        BlockPool::Create(side_.device(), side_.model().MakeKvLayout(3, 16, DType::kBf16)).value();
    FrameStore store(encoders->spec());
    EncodeTask task{encoders.get(), &store};
    EXPECT_TRUE(EncodePrompt(side_.model(), *pool, prompt_, kTokens - 1, absl::MakeSpan(&task, 1)).ok());
    return store.frames();
  }
  KvTarget Target() { return {&side_.model(), &side_.pool(), side_.table().ids(), prompt_, kTokens - 1, 0}; }

  TestModel side_{"tests/runtime/model/golden/tiny/llama_head_dim",
                  {.compute = DType::kF32, .max_rows = 8},
                  DType::kBf16,
                  48};
  std::vector<int32_t> prompt_;
  AludelShape shape_;
  AludelEncoderWeights encoder_;
  AludelDecoderWeights decoder_;
};

// In any order, each upgrade writes the rows of its frame as the whole frame does, and no others.
TEST_P(UpgradedPages, BecomeThoseOfWholeFramesFrameByFrame) {
  Random source;
  std::vector<WireFrame> frames = Encode();
  ASSERT_EQ(frames.size(), 3 * shape_.groups.size());
  const auto whole = Decoders(0);
  const auto base = Decoders(kBasePlanes);
  ASSERT_TRUE(ApplyFrames(frames, *whole, Target()).ok());
  const Pages want(side_, kTokens - 1);

  const auto first = base->NewDecoder().value();
  const auto later = whole->NewDecoder().value();
  ASSERT_TRUE(BeginHandoff(*first, Target()).ok());
  ASSERT_TRUE(BeginHandoff(*later, Target()).ok());
  PlaneUpgrades upgrades(kBasePlanes, kPlanes);
  for (const WireFrame& frame : frames) {
    const FrameCoverage coverage = DecodeFrameHeader(frame.header)->coverage;
    const PlaneSplit split = SplitPlanes(frame.payload, kBasePlanes).value();
    ASSERT_TRUE(first->Apply(coverage, split.base, Target()).ok());
    ASSERT_TRUE(upgrades.AddBase(coverage, split.base).ok());
  }
  Pages pages(side_, kTokens - 1);
  std::shuffle(frames.begin(), frames.end(), source.engine);
  for (const WireFrame& frame : frames) {
    const FrameCoverage coverage = DecodeFrameHeader(frame.header)->coverage;
    FrameCoverage upgrade = coverage;
    upgrade.plane = kBasePlanes;
    const auto joined = upgrades.Join(upgrade, SplitPlanes(frame.payload, kBasePlanes)->upgrade);
    ASSERT_TRUE(joined.ok()) << joined.status();
    ASSERT_TRUE(later->Apply(coverage, *joined, Target()).ok());
    const Pages upgraded(side_, kTokens - 1);
    int changed = 0;
    for (int layer = 0; layer < side_.model().config().layers; ++layer) {
      for (int64_t token = 0; token < kTokens - 1; ++token) {
        const bool covered = layer >= coverage.first_layer &&
                             layer < coverage.first_layer + coverage.layers &&
                             token >= coverage.token_begin && token < coverage.token_begin + coverage.tokens;
        const Pages& expected = covered ? want : pages;
        ASSERT_EQ(upgraded.row(layer, token), expected.row(layer, token)) << layer << ", " << token;
        changed += static_cast<int>(upgraded.row(layer, token) != pages.row(layer, token));
      }
    }
    EXPECT_EQ(changed, static_cast<int>(coverage.tokens * coverage.layers)) << "the base was coarser";
    pages = upgraded;
  }
  EXPECT_EQ(upgrades.waiting(), 0);
  EXPECT_TRUE(pages == want);
}

// As a server decodes them: one decoder takes both parts, first ones before second ones or mixed.
TEST_P(UpgradedPages, BecomeThoseOfWholeFramesByOneDecoderOfBothParts) {
  Random source;
  const std::vector<WireFrame> frames = Encode();
  const auto both = Decoders(0, kBasePlanes);
  EXPECT_EQ(both->spec().base_planes, kBasePlanes);
  ASSERT_TRUE(ApplyFrames(frames, *Decoders(0), Target()).ok());
  const Pages want(side_, kTokens - 1);
  const auto base = Decoders(kBasePlanes);
  const auto coarse = base->NewDecoder().value();
  ASSERT_TRUE(BeginHandoff(*coarse, Target()).ok());
  for (const WireFrame& frame : frames) {
    const PlaneSplit split = SplitPlanes(frame.payload, kBasePlanes).value();
    ASSERT_TRUE(coarse->Apply(DecodeFrameHeader(frame.header)->coverage, split.base, Target()).ok());
  }
  const Pages want_first(side_, kTokens - 1);
  ASSERT_FALSE(want_first == want);

  for (const bool mixed : {false, true}) {
    struct Part {
      FrameCoverage coverage;
      std::vector<uint8_t> payload;
    };
    std::vector<Part> first, second;
    for (const WireFrame& frame : frames) {
      const PlaneSplit split = SplitPlanes(frame.payload, kBasePlanes).value();
      FrameCoverage coverage = DecodeFrameHeader(frame.header)->coverage;
      first.push_back({coverage, {split.base.begin(), split.base.end()}});
      coverage.plane = kBasePlanes;
      second.push_back({coverage, {split.upgrade.begin(), split.upgrade.end()}});
    }
    const auto decoder = both->NewDecoder().value();
    ASSERT_TRUE(BeginHandoff(*decoder, Target()).ok());
    const auto apply = [&](const Part& part) {
      const absl::Status applied = decoder->Apply(part.coverage, part.payload, Target());
      EXPECT_TRUE(applied.ok()) << applied;
    };
    const absl::Status orphan = decoder->Apply(second[0].coverage, second[0].payload, Target());
    EXPECT_THAT(orphan.ToString(), HasSubstr("no base frame is of these"));
    const absl::Status whole = decoder->Apply(first[0].coverage, frames[0].payload, Target());
    EXPECT_THAT(whole.ToString(), HasSubstr("holds planes [0, 4), want [0, 2)"));
    std::shuffle(second.begin(), second.end(), source.engine);
    for (const Part& part : first) {
      apply(part);
      if (mixed) {
        const auto its = std::find_if(second.begin(), second.end(), [&](const Part& other) {
          return other.coverage.first_layer == part.coverage.first_layer &&
                 other.coverage.token_begin == part.coverage.token_begin;
        });
        apply(*its);
      }
    }
    if (!mixed) {
      EXPECT_TRUE(Pages(side_, kTokens - 1) == want_first);
      for (const Part& part : second) apply(part);
    }
    EXPECT_TRUE(Pages(side_, kTokens - 1) == want);
    EXPECT_EQ(decoder->Apply(second[0].coverage, second[0].payload, Target()).code(),
              absl::StatusCode::kAlreadyExists);
  }
}

INSTANTIATE_TEST_SUITE_P(RecomputedLayers, UpgradedPages, ::testing::Values(-1, 0));

}  // namespace
}  // namespace aludel
