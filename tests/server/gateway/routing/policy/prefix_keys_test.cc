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
  EXPECT_THAT(MakePrefixKeys({1}, Prompt(200)).ends, ElementsAre(64, 128, 192));
  EXPECT_THAT(MakePrefixKeys({1}, Prompt(128)).ends, ElementsAre(64, 128));
  const PrefixKeys longest = MakePrefixKeys({1}, Prompt(131072));
  const PrefixKeys half = MakePrefixKeys({1}, Prompt(65536));
  EXPECT_TRUE(std::equal(half.ends.begin(), half.ends.end(), longest.ends.begin()));
  EXPECT_LT(longest.size(), 110u);
}

TEST(PrefixKeys, AShortPromptHasOneForAllOfIt) {
  EXPECT_THAT(MakePrefixKeys({1}, Prompt(5)).ends, ElementsAre(5));
  EXPECT_NE(MakePrefixKeys({1}, Prompt(5)).keys, MakePrefixKeys({1}, Prompt(6)).keys);
  EXPECT_THAT(MakePrefixKeys({1}, {}).keys, IsEmpty());
}

TEST(PrefixKeys, AreEqualAsFarAsPromptsAre) {
  std::vector<int32_t> one = Prompt(640), other = one;
  other[300] = -7;
  const PrefixKeys a = MakePrefixKeys({1}, one), b = MakePrefixKeys({1}, other);
  ASSERT_THAT(a.keys, SizeIs(10));
  for (size_t i = 0; i < 10; ++i) EXPECT_EQ(a.keys[i] == b.keys[i], a.ends[i] <= 300) << i;
}

TEST(PrefixKeys, OfTwoSeedsHaveNothingInCommon) {
  const PrefixKeys a = MakePrefixKeys({HashTexts({"chat", "salt"})}, Prompt(640));
  const PrefixKeys b = MakePrefixKeys({HashTexts({"chat", "other"})}, Prompt(640));
  for (const uint64_t key : a.keys) EXPECT_EQ(std::count(b.keys.begin(), b.keys.end(), key), 0);
}

TEST(PrefixKeys, AClientsKeyIsOfItsSalt) {
  EXPECT_EQ(HomeKey(SaltSeed("alice"), "session"), HomeKey(SaltSeed("alice"), "session"));
  EXPECT_NE(HomeKey(SaltSeed("alice"), "session"), HomeKey(SaltSeed("bob"), "session"));
  EXPECT_NE(HomeKey(SaltSeed("alice"), "session"), HomeKey(SaltSeed("alice"), "sessions"));
}

TEST(PrefixKeys, TextsAreHashedWithTheirLengths) {
  EXPECT_NE(HashTexts({"ab", "c"}), HashTexts({"a", "bc"}));
  EXPECT_NE(HashTexts({"a"}), HashTexts({"a", ""}));
}

TEST(PrefixKeys, AreSipHashes) {
  // The example of its authors, and two more of their vectors.
  constexpr PromptSeed kSeed = {0x0706050403020100, 0x0f0e0d0c0b0a0908};
  constexpr char kBytes[] = "\0\1\2\3\4\5\6\7\10\11\12\13\14\15\16";
  EXPECT_EQ(SipHashOf(kSeed, {kBytes, 15}), 0xa129ca6149be45e5u);
  EXPECT_EQ(SipHashOf(kSeed, {kBytes, 8}), 0x93f5f5799a932462u);
  EXPECT_EQ(SipHashOf(kSeed, ""), 0x726fdb47dd0e0e31u);
}

// What MixBits made it of.
uint64_t Unmixed(uint64_t x) {
  const auto unshifted = [](uint64_t y, int by) {
    uint64_t before = y;
    for (int known = by; known < 64; known += by) before = y ^ (before >> by);
    return before;
  };
  const auto inverse = [](uint64_t odd) {
    uint64_t result = odd;
    for (int i = 0; i < 6; ++i) result *= 2 - odd * result;
    return result;
  };
  x = unshifted(x, 31) * inverse(0x94d049bb133111eb);
  x = unshifted(x, 27) * inverse(0xbf58476d1ce4e5b9);
  return unshifted(x, 30) - 0x9e3779b97f4a7c15;
}

// One that reads a key and knows no salt shall not be able to try out what comes next.
TEST(PrefixKeys, AKeyDoesNotTellTheNext) {
  ASSERT_EQ(Unmixed(MixBits(12345)), 12345u);
  const PrefixKeys keys = MakePrefixKeys(SaltSeed("secret"), Prompt(65), /*with_blocks=*/true);
  for (const uint64_t guess : {keys.blocks[0], Unmixed(keys.blocks[0])}) {
    // As PromptHash goes on from its state.
    uint64_t state = guess;
    for (uint64_t token = 16; token < 32; ++token) {
      state = (state ^ token) * 0x9fb21c651e98df25;
      state ^= state >> 32;
    }
    EXPECT_NE(MixBits(state), keys.blocks[1]);
    EXPECT_NE(state, keys.blocks[1]);
  }
}

TEST(PrefixKeys, NeedAllOfTheSeed) {
  EXPECT_NE(MakePrefixKeys({1, 2}, Prompt(64)).keys, MakePrefixKeys({1, 3}, Prompt(64)).keys);
  EXPECT_NE(SaltSeed("a").first, SaltSeed("a").second);
  EXPECT_NE(SaltSeed("a").second, SaltSeed("b").second);
}

// Gateways of two releases must agree.
TEST(PrefixKeys, AreTheSameInEveryRelease) {
  EXPECT_EQ(MakePrefixKeys({HashTexts({"chat", ""})}, Prompt(64)).keys[0], 14629776129210316127u);
}

TEST(PrefixKeys, EndsFollowFromTheNumberOfKeys) {
  for (const int64_t tokens : {0, 1, 63, 64, 65, 640, 5000}) {
    const PrefixKeys keys = MakePrefixKeys({1}, std::vector<int32_t>(static_cast<size_t>(tokens), 7));
    EXPECT_EQ(WithEnds(keys.keys, tokens).ends, keys.ends) << tokens;
    EXPECT_EQ(WithEnds(keys.keys, tokens).tokens, tokens);
  }
  // What a peer says that is wrong.
  const std::vector<uint64_t> many(100);
  EXPECT_EQ(WithEnds(many, 64).size(), 1u);
  EXPECT_EQ(WithEnds(many, -1).size(), 0u);
}

TEST(PrefillKey, ConsumersOfOneProducerAndEncoderShareItAndOthersDoNot) {
  const uint64_t key = MakePrefixKeys(SaltSeed("salt"), Prompt(64)).keys[0];
  const std::vector<std::string> sources = {"",
                                            PrefillSource("base", "e1"),
                                            PrefillSource("base", "e2"),
                                            PrefillSource("other", "e1"),
                                            PrefillSource("base", ""),
                                            PrefillSource("", "e1")};
  for (size_t i = 0; i < sources.size(); ++i) {
    for (size_t j = 0; j < sources.size(); ++j) {
      EXPECT_EQ(PrefillKey(key, sources[i]) == PrefillKey(key, sources[j]), i == j) << i << ", " << j;
    }
  }
  EXPECT_EQ(PrefillKey(key, PrefillSource("", "")), key) << "neither is known";
  const uint64_t salted = MakePrefixKeys(SaltSeed("another"), Prompt(64)).keys[0];
  EXPECT_NE(PrefillKey(salted, sources[1]), PrefillKey(key, sources[1]));
}

}  // namespace
}  // namespace aludel
