#include "server/gateway/routing/policy/prefix_keys.h"

#include <algorithm>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<int32_t> Prompt(int64_t tokens, int32_t first = 0) {
  std::vector<int32_t> prompt(static_cast<size_t>(tokens));
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

TEST(PrefixKeys, EndAtPositionsThatDependOnNothingElse) {
  EXPECT_THAT(MakePrefixKeys(1, Prompt(200)).ends, ElementsAre(64, 128, 192));
  EXPECT_THAT(MakePrefixKeys(1, Prompt(128)).ends, ElementsAre(64, 128));
  const PrefixKeys longest = MakePrefixKeys(1, Prompt(131072));
  const PrefixKeys half = MakePrefixKeys(1, Prompt(65536));
  EXPECT_TRUE(std::equal(half.ends.begin(), half.ends.end(), longest.ends.begin()));
  EXPECT_LT(longest.size(), 110u);
}

TEST(PrefixKeys, AShortPromptHasOneForAllOfIt) {
  EXPECT_THAT(MakePrefixKeys(1, Prompt(5)).ends, ElementsAre(5));
  EXPECT_NE(MakePrefixKeys(1, Prompt(5)).keys, MakePrefixKeys(1, Prompt(6)).keys);
  EXPECT_THAT(MakePrefixKeys(1, {}).keys, IsEmpty());
}

TEST(PrefixKeys, AreEqualAsFarAsPromptsAre) {
  std::vector<int32_t> one = Prompt(640), other = one;
  other[300] = -7;
  const PrefixKeys a = MakePrefixKeys(1, one), b = MakePrefixKeys(1, other);
  ASSERT_THAT(a.keys, SizeIs(10));
  for (size_t i = 0; i < 10; ++i) EXPECT_EQ(a.keys[i] == b.keys[i], a.ends[i] <= 300) << i;
}

TEST(PrefixKeys, OfTwoSeedsHaveNothingInCommon) {
  const PrefixKeys a = MakePrefixKeys(HashTexts({"chat", "salt"}), Prompt(640));
  const PrefixKeys b = MakePrefixKeys(HashTexts({"chat", "other"}), Prompt(640));
  for (const uint64_t key : a.keys) EXPECT_EQ(std::count(b.keys.begin(), b.keys.end(), key), 0);
}

TEST(PrefixKeys, TextsAreHashedWithTheirLengths) {
  EXPECT_NE(HashTexts({"ab", "c"}), HashTexts({"a", "bc"}));
  EXPECT_NE(HashTexts({"a"}), HashTexts({"a", ""}));
}

// Gateways of two releases must agree.
TEST(PrefixKeys, AreTheSameInEveryRelease) {
  EXPECT_EQ(MakePrefixKeys(HashTexts({"chat", ""}), Prompt(64)).keys[0], 12032816689686444372u);
}

TEST(PrefixKeys, EndsFollowFromTheNumberOfKeys) {
  for (const int64_t tokens : {0, 1, 63, 64, 65, 640, 5000}) {
    const PrefixKeys keys = MakePrefixKeys(1, std::vector<int32_t>(static_cast<size_t>(tokens), 7));
    EXPECT_EQ(WithEnds(keys.keys, tokens).ends, keys.ends) << tokens;
    EXPECT_EQ(WithEnds(keys.keys, tokens).tokens, tokens);
  }
  // What a peer says that is wrong.
  const std::vector<uint64_t> many(100);
  EXPECT_EQ(WithEnds(many, 64).size(), 1u);
  EXPECT_EQ(WithEnds(many, -1).size(), 0u);
}

}  // namespace
}  // namespace aludel
