#include "server/gateway/routing/policy/key_depth.h"

#include "gtest/gtest.h"

namespace aludel {
namespace {

// Prompts of `shared` equal keys and one of their own.
PrefixKeys Prompt(int shared, uint64_t own) {
  PrefixKeys keys;
  for (int i = 0; i < shared; ++i) keys.keys.push_back(MixBits(static_cast<uint64_t>(i)));
  keys.keys.push_back(MixBits(own + 1'000'000));
  for (size_t i = 0; i < keys.size(); ++i) keys.ends.push_back(static_cast<int64_t>(64 * (i + 1)));
  return keys;
}

TEST(KeyDepth, IsTheShortestBeginningWhereNothingIsHot) {
  KeyDepth depth;
  for (uint64_t i = 0; i < 1000; ++i) EXPECT_EQ(depth.Count(Prompt(0, i), 8), 0u);
  EXPECT_EQ(depth.Of({}), 0u);
}

TEST(KeyDepth, ASystemPromptThatAllShareIsSplitSoon) {
  KeyDepth depth;
  for (uint64_t i = 0; i < 300; ++i) depth.Count(Prompt(20, i), 8);
  EXPECT_EQ(depth.Of(Prompt(20, 5000)), 20u);
  EXPECT_EQ(depth.Of(Prompt(0, 5001)), 0u);
}

TEST(KeyDepth, IsWholeAgainOnceItIsRare) {
  KeyDepth depth;
  uint64_t own = 0;
  for (int i = 0; i < 300; ++i) depth.Count(Prompt(1, own++), 8);
  ASSERT_EQ(depth.Of(Prompt(1, 0)), 1u);
  // Every fifth request: under 2/8 but over 1/8.
  for (int i = 0; i < 8000; ++i) depth.Count(Prompt(i % 5 == 0 ? 1 : 0, own++), 8);
  EXPECT_EQ(depth.Of(Prompt(1, 0)), 1u);
  for (int i = 0; i < 8000; ++i) depth.Count(Prompt(i % 20 == 0 ? 1 : 0, own++), 8);
  EXPECT_EQ(depth.Of(Prompt(1, 0)), 0u);
}

TEST(KeyDepth, AShareUnderTwoServersWorthIsNotHot) {
  KeyDepth depth;
  for (uint64_t i = 0; i < 8000; ++i) depth.Count(Prompt(i % 5 == 0 ? 1 : 0, i), 8);
  EXPECT_EQ(depth.Of(Prompt(1, 0)), 0u);
}

TEST(KeyDepth, KeepsWhatIsHotWithinItsBound) {
  KeyDepth depth;
  for (uint64_t i = 0; i < 40'000; ++i) depth.Count(Prompt(i % 2 == 0 ? 3 : 0, i), 8);
  EXPECT_LE(depth.size(), KeyDepth::kMaxKeys);
  EXPECT_EQ(depth.Of(Prompt(3, 0)), 3u);
}

}  // namespace
}  // namespace aludel
