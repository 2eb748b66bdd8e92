#include "server/bench/ttft/ttft_plan.h"

#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/codec/artifact/artifact_files.h"
#include "tests/runtime/model/temporary_directory.h"

namespace aludel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Lt;

constexpr char kDemoCodec[] = "deploy/demo/codec";

TEST(TtftPlan, LengthsAreSortedAndEachOnce) {
  EXPECT_THAT(*ParseLengths("512,256,512"), ElementsAre(256, 512));
  for (const char* wrong : {"", "1", "256,", "-4", "many"}) {
    EXPECT_THAT(ParseLengths(wrong).status().message(), HasSubstr("--lengths")) << wrong;
  }
}

TEST(TtftPlan, LinksAreBitsPerSecondInTheOrderGiven) {
  EXPECT_THAT(*ParseLinks("1G,10M,2.5G,none,1G"), ElementsAre(1e9, 1e7, 2.5e9, 0));
  for (const char* wrong : {"", "10", "10m", "0M", "-1G", "M", "10M,", "nanG", "infG"}) {
    EXPECT_THAT(ParseLinks(wrong).status().message(), HasSubstr("--links")) << wrong;
  }
}

TEST(TtftPlan, ThePromptAndOneTokenFitIntoBothContexts) {
  ModelConfig roomy, tight;
  roomy.max_positions = 2048;
  tight.max_positions = 1024;
  EXPECT_TRUE(CheckLengths({256, 1023}, roomy, tight).ok());
  EXPECT_THAT(CheckLengths({256, 1024}, roomy, tight).message(),
              AllOf(HasSubstr("1024 tokens"), HasSubstr("--consumer, 1024")));
  EXPECT_THAT(CheckLengths({2000}, tight, roomy).message(), HasSubstr("--producer, 1024"));
}

TEST(TtftPlan, EachFormatGoesWithTheArtifactThatHoldsIt) {
  const auto chosen = PlanSetups({kDemoCodec}, {"aludel-p2", "raw", "int8", "raw"});
  ASSERT_TRUE(chosen.ok()) << chosen.status();
  ASSERT_EQ(chosen->size(), 1u);
  EXPECT_EQ((*chosen)[0].artifact, kDemoCodec);
  EXPECT_THAT((*chosen)[0].formats, ElementsAre("aludel-p2", "raw", "int8"));
  EXPECT_THAT((*PlanSetups({kDemoCodec}, {}))[0].formats,
              ElementsAre("raw", "aludel-p2", "aludel-p0", "scd", "reuse-only", "planner"));
  EXPECT_THAT((*PlanSetups({}, {"raw", "int4"}))[0].formats, ElementsAre("raw", "int4"));
  // Those that need no artifact are measured once.
  const auto two = PlanSetups({kDemoCodec, kDemoCodec}, {"raw", "scd"});
  ASSERT_EQ(two->size(), 2u);
  EXPECT_THAT((*two)[0].formats, ElementsAre("raw", "scd"));
  EXPECT_THAT((*two)[1].formats, ElementsAre("scd"));
}

// They are slower than rans: what asks for no format gets none of them.
TEST(TtftPlan, FormatsOfPackingVideoAreMeasuredWhereTheyAreNamed) {
  const TemporaryDirectory files;
  const std::string codec = files.File("codec");
  const ArtifactManifest demo = LoadArtifactManifest(kDemoCodec).value();
  ArtifactManifest manifest;
  manifest.producer = demo.producer;
  manifest.producer_hash = demo.producer_hash;
  ArtifactWriter writer = ArtifactWriter::Begin(codec).value();
  ASSERT_TRUE(KeepFormats(demo, {}, /*replace_controls=*/false, &writer, &manifest).ok());
  ASSERT_EQ(manifest.formats[0].name, "aludel-p2");
  manifest.formats[0].aludel.packing = LatentPacking::kVideo;
  ASSERT_TRUE(writer.Publish(manifest).ok());

  const auto named = PlanSetups({codec}, {"aludel-p2", "raw"});
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_THAT((*named)[0].formats, ElementsAre("aludel-p2", "raw"));
  EXPECT_THAT((*PlanSetups({codec}, {}))[0].formats,
              ElementsAre("raw", "aludel-p0", "scd", "reuse-only", "planner"));
  EXPECT_THAT(PlanSetups({codec}, {"aludel-p7"}).status().message(), HasSubstr("aludel-p2"));
}

TEST(TtftPlan, AFormatThatNobodyHasIsNamed) {
  EXPECT_THAT(PlanSetups({kDemoCodec}, {"aludel-p7"}).status().message(),
              AllOf(HasSubstr("\"aludel-p7\" is in no --codec"), HasSubstr("raw, aludel-p2")));
  EXPECT_THAT(PlanSetups({}, {"scd"}).status().message(), HasSubstr("raw, lossless, int8, int4"));
  EXPECT_THAT(PlanSetups({"no/such"}, {}).status().message(), HasSubstr("no/such"));
}

TEST(TtftPrompts, NoTwoAreAlikeAndNoneHasSpecialTokens) {
  TtftPrompts prompts(2048, {}, 1);
  std::set<std::vector<int32_t>> all;
  for (int i = 0; i < 50; ++i) {
    const std::vector<int32_t> prompt = prompts.Next(64);
    EXPECT_EQ(prompt.size(), 64u);
    EXPECT_THAT(prompt, ::testing::Each(AllOf(Ge(256), Lt(2048 - 256))));
    all.insert(prompt);
  }
  EXPECT_EQ(all.size(), 50u);
  EXPECT_EQ(TtftPrompts(2048, {}, 7).Next(9), TtftPrompts(2048, {}, 7).Next(9));
}

TEST(TtftPrompts, TextFollowsASaltThatDiffers) {
  TtftPrompts prompts(2048, {1, 2, 3}, 1);
  const std::vector<int32_t> one = prompts.Next(20), other = prompts.Next(20);
  EXPECT_NE(std::vector<int32_t>(one.begin(), one.begin() + 8),
            std::vector<int32_t>(other.begin(), other.begin() + 8));
  for (size_t i = 9; i < one.size(); ++i) EXPECT_EQ(one[i], one[i - 1] % 3 + 1);  // the text, round and round
}

}  // namespace
}  // namespace aludel
