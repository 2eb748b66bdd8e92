#include "runtime/codec/aludel/code_range.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <random>

#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "runtime/codec/aludel/encode.h"
#include "runtime/codec/aludel/latent_packing.h"
#include "runtime/codec/aludel/reconstruct.h"
#include "runtime/codec/aludel/weight_files.h"
#include "runtime/codec/handoff.h"
#include "runtime/codec/open_codec.h"
#include "runtime/evaluate/in_process_handoff.h"
#include "runtime/text/tokenizer/tokenizer.h"
#include "tests/testing/test_model.h"

namespace aludel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class CountedCodes : public ::testing::TestWithParam<LatentPacking> {};

// Binary digits of a magnitude, by division.
int64_t DigitsOf(int64_t magnitude) { return magnitude == 0 ? 0 : 1 + DigitsOf(magnitude / 2); }

TEST_P(CountedCodes, AreThoseOfEachPart) {
  std::mt19937_64 random(std::random_device{}());
  for (const int64_t tokens : {1, 63, 64, 65, 300}) {
    const LatentGrid grid{0.25f, {2, 3, 5, 8, 9, 13, 16}, std::vector<float>(7, 0.95f), 4};
    const auto rank = static_cast<int64_t>(grid.bits.size());
    std::vector<float> z(tokens * rank);
    std::vector<CodeCount> want;
    for (int64_t begin = 0; begin < tokens; begin += kRangeTokens) {
      CodeCount part;
      for (int64_t t = begin; t < std::min(tokens, begin + kRangeTokens); ++t) {
        for (int64_t i = 0; i < rank; ++i, ++part.codes) {
          // A quarter at either end or beyond it; the others are further from it than what rounding reaches.
          const int64_t high = (1 << (grid.bits[i] - 1)) - 1, low = -high - 1;
          const auto kind = random() % 4;
          int64_t code = random() % 2 == 0 ? low : high;
          if (kind > 1 && high > low + 2) code = std::uniform_int_distribution(low + 1, high - 1)(random);
          const bool at_end = code == low || code == high;
          const double beyond = at_end && kind == 0 ? 3 : 1;
          z[t * rank + i] = static_cast<float>(grid.step * code * beyond);
          part.at_ends += static_cast<int64_t>(at_end);
          part.digits += DigitsOf(std::abs(code));
        }
      }
      want.push_back(part);
    }
    std::vector<uint8_t> payload(MaxPackedBytes(grid, GetParam(), tokens));
    payload.resize(PackLatents(z.data(), tokens, grid, GetParam(), absl::MakeSpan(payload)));
    std::vector<uint8_t> opened;
    const auto coder = MakeLatentCoder(grid, GetParam());
    const auto planes = OpenPlanes(payload, grid, GetParam(), coder.get(), tokens, &opened);
    ASSERT_TRUE(planes.ok()) << planes.status();
    const std::vector<CodeCount> found = CountCodes(planes->bytes, grid.bits, GetParam(), tokens);
    ASSERT_EQ(found.size(), want.size()) << tokens << " tokens";
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(found[i].at_ends, want[i].at_ends) << tokens << " tokens, part " << i;
      EXPECT_EQ(found[i].digits, want[i].digits) << tokens << " tokens, part " << i;
      EXPECT_EQ(found[i].codes, want[i].codes);
      EXPECT_DOUBLE_EQ(EndShare(found[i], rank),
                       static_cast<double>(want[i].at_ends) / static_cast<double>(64 * rank));
      const bool whole = want[i].codes == 64 * rank;
      EXPECT_DOUBLE_EQ(Digits(found[i], rank), whole ? want[i].digits / (64.0 * rank) : 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Packings, CountedCodes,
                         ::testing::Values(LatentPacking::kFixed, LatentPacking::kDeflate,
                                           LatentPacking::kRans, LatentPacking::kEmbedded),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST(EndCodesAllowed, AreFewerThanOneTokenThatIsBeyondTheRangeHas) {
  EXPECT_EQ(MostEndCodesAllowed(0, 10), 16) << "few codes tell nothing";
  EXPECT_EQ(MostEndCodesAllowed(0, 100), 64);
  EXPECT_EQ(MostEndCodesAllowed(0.05, 100), 1280) << "four times what calibration saw";
  EXPECT_GE(MostEndCodesAllowed(0.5, 100), 6400) << "never";
  for (int64_t rank = 22; rank < 3000; ++rank) {
    ASSERT_GT(3 * rank, 4 * MostEndCodesAllowed(0, rank)) << "three quarters of one token, rank " << rank;
  }
}

TEST(CodeRangeOfAShape, NamesTheLayersOfThePartThatIsBeyondIt) {
  AludelShape shape;
  shape.groups = {{3, 5, 100}, {8, 5, 100}};
  shape.range = {{0, {0.5, 0.25}}};
  const auto part = [](double digits) { return CodeCount{0, 6400, static_cast<int64_t>(digits * 6400)}; };
  const std::vector<CodeCount> usual = {part(0.1), part(0.52)};
  EXPECT_TRUE(CheckCodeRange(shape, 0, usual).ok());
  const absl::Status status = CheckCodeRange(shape, 1, usual);
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(
      status.message(),
      "layers 8-12: codes have 0.520 binary digits on average (artifact expects at most 0.250, and 0.275 are "
      "taken): the prompt is unlike what the codec was fitted to");
  EXPECT_TRUE(CheckCodeRange(shape, 1, {{0, 6300, 6300}}).ok()) << "63 tokens";
  shape.range->digits = {0.5, 0};
  EXPECT_TRUE(CheckCodeRange(shape, 1, usual).ok()) << "calibration had no 64 tokens";
  shape.range->digits.clear();
  EXPECT_TRUE(CheckCodeRange(shape, 1, usual).ok()) << "an artifact from before digits";
}

TEST(CodeRangeOfAShape, UnitesWhatIsKnown) {
  const CodeRange both = Union({0.1, {0.5, 0.25}}, {0.2, {0.25, 0.75}});
  EXPECT_EQ(both.end_share, 0.2);
  EXPECT_THAT(both.digits, testing::ElementsAre(0.5, 0.75));
  EXPECT_THAT(Union({0.1, {}}, {0.2, {0.25}}).digits, testing::ElementsAre(0.25));
  EXPECT_THAT(Union({0.1, {0.25}}, {0.2, {}}).digits, testing::ElementsAre(0.25));
}

// Of demo questions, which no fit has seen.
std::vector<std::vector<int32_t>> DemoPrompts(size_t count) {
  const auto tokenizer = Tokenizer::Load("deploy/demo/base").value();
  std::vector<std::vector<int32_t>> prompts;
  std::ifstream in("deploy/demo/questions.jsonl");
  for (std::string line; prompts.size() < count && std::getline(in, line);) {
    prompts.push_back(
        tokenizer->Encode(nlohmann::json::parse(line)["context"].get<std::string>(), false).value());
  }
  return prompts;
}

// The demo's codec, which was fitted to prompts like these.
class DemoRange : public ::testing::TestWithParam<const char*> {
 protected:
  DemoRange()
      : manifest_(LoadArtifactManifest("deploy/demo/codec").value()), format_(**manifest_.Find(GetParam())) {
    const ModelConfig& config = producer_.model().config();
    encoder_ = LoadAludelEncoder(manifest_, format_, config.kv_dim(), config.hidden).value();
    decoder_ =
        LoadAludelDecoder(manifest_, format_, format_.decoders[0], config.kv_dim(), config.hidden).value();
  }

  // Of a handoff whose latents are so many times as large as the encoder's.
  absl::Status HandOver(const std::vector<int32_t>& prompt, float times, const AludelShape& shape) {
    AludelEncoderWeights scaled = encoder_;
    for (AludelEncoderGroup& group : scaled) {
      for (std::vector<float>* const values : {&group.matrix.values, &group.side.values, &group.offset}) {
        for (float& value : *values) value *= times;
      }
    }
    const auto encoder = MakeAludelEncoders("scaled", "", shape, scaled, producer_.model()).value();
    const auto decoder = MakeAludelDecoders("scaled", "", shape, decoder_, consumer_.model()).value();
    const auto tokens = static_cast<int64_t>(prompt.size());
    FrameStore store(encoder->spec());
    EncodeTask task{encoder.get(), &store};
    EXPECT_TRUE(EncodePrompt(producer_.model(), *pool_, prompt, tokens - 1, absl::MakeSpan(&task, 1)).ok());
    const KvTarget target{&consumer_.model(), &consumer_.pool(), consumer_.table().ids(), prompt, tokens - 1};
    return ApplyFrames(store.frames(), *decoder, target);
  }

  TestModel producer_{"deploy/demo/base", {.max_rows = 256}, DType::kBf16, 16};
  TestModel consumer_{"deploy/demo/chat", {.max_rows = 256}, DType::kBf16, 1024};
  const std::unique_ptr<BlockPool> pool_ =
      BlockPool::Create(producer_.device(), producer_.model().MakeKvLayout(64, 16, DType::kBf16)).value();
  const ArtifactManifest manifest_;
  const ArtifactFormat format_;
  AludelEncoderWeights encoder_;
  AludelDecoderWeights decoder_;
};

TEST_P(DemoRange, HoldsPromptsLikeThoseOfItsFitAndNoOthers) {
  ASSERT_TRUE(format_.aludel.range.has_value());
  const auto prompts = DemoPrompts(30);
  for (const auto& prompt : prompts) {
    const absl::Status status = HandOver(prompt, 1, format_.aludel);
    ASSERT_TRUE(status.ok()) << status;
  }
  for (const float times : {6.0f, 50.0f}) {
    const absl::Status status = HandOver(prompts[0], times, format_.aludel);
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
    const AludelGroup& group = format_.aludel.groups[0];
    EXPECT_THAT(
        std::string(status.message()),
        AllOf(HasSubstr(absl::StrFormat("layers %d-7: ", group.first_layer)),
              HasSubstr(absl::StrFormat(
                  " of %d codes are at the end of their range (artifact expects at most ", 64 * group.rank)),
              HasSubstr(": the prompt is unlike what the codec was fitted to")));
  }
}

TEST_P(DemoRange, IsNotAskedOfAnArtifactThatDoesNotTell) {
  AludelShape shape = format_.aludel;
  shape.range.reset();
  EXPECT_TRUE(HandOver(DemoPrompts(1)[0], 50, shape).ok());
}

INSTANTIATE_TEST_SUITE_P(Formats, DemoRange, ::testing::Values("aludel-p2", "aludel-p0"),
                         [](const auto& info) { return std::string(info.param).substr(7); });

}  // namespace
}  // namespace aludel
