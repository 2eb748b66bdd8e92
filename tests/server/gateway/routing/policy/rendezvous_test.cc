#include "server/gateway/routing/policy/rendezvous.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/gateway/routing/policy/prefix_keys.h"

namespace aludel {
namespace {

using ::testing::UnorderedElementsAreArray;

constexpr int kKeys = 100'000;

std::vector<RendezvousMember> Members(int count, double weight = 1) {
  std::vector<RendezvousMember> members;
  for (int i = 0; i < count; ++i)
    members.push_back({RendezvousId(absl::StrCat("decode-", i, ":7200")), weight});
  return members;
}

RendezvousPair Pair(uint64_t key, const std::vector<RendezvousMember>& members) {
  return PickPair(key, members.size(), [&](size_t i) { return members[i]; });
}

uint64_t Key(int i) { return MixBits(static_cast<uint64_t>(i) + 1'000'003); }

TEST(Rendezvous, OneMoreOfEightMovesItsShareAndNothingElse) {
  for (const int count : {7, 8}) {
    const std::vector<RendezvousMember> before = Members(count), after = Members(count + 1);
    int moved = 0;
    for (int i = 0; i < kKeys; ++i) {
      const size_t was = *Pair(Key(i), before).first, is = *Pair(Key(i), after).first;
      if (was == is) continue;
      ++moved;
      EXPECT_EQ(is, static_cast<size_t>(count));
    }
    const double share = static_cast<double>(moved) / kKeys;
    EXPECT_NEAR(share, 1.0 / (count + 1), 0.005);
    EXPECT_LE(share, 1.0 / 8 + 0.02);
  }
}

TEST(Rendezvous, WhoGoesLeavesItsKeysToTheSecond) {
  const std::vector<RendezvousMember> members = Members(8);
  for (int i = 0; i < 1000; ++i) {
    const RendezvousPair pair = Pair(Key(i), members);
    std::vector<RendezvousMember> without = members;
    without[*pair.first].weight = 0;
    EXPECT_EQ(Pair(Key(i), without).first, pair.second);
  }
}

TEST(Rendezvous, SharesFollowWeights) {
  std::vector<RendezvousMember> members = Members(4);
  members[2].weight = 0.25;
  std::vector<int> counts(4);
  for (int i = 0; i < kKeys; ++i) ++counts[*Pair(Key(i), members).first];
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(static_cast<double>(counts[i]) / kKeys, members[i].weight / 3.25, 0.01) << i;
  }
}

// What a new member takes while it warms up, it keeps.
TEST(Rendezvous, AGrowingWeightOnlyBringsKeys) {
  std::vector<RendezvousMember> young = Members(8), older = Members(8);
  young[7].weight = 0.2;
  older[7].weight = 0.7;
  for (int i = 0; i < 10'000; ++i) {
    const size_t was = *Pair(Key(i), young).first, is = *Pair(Key(i), older).first;
    EXPECT_TRUE(was == is || is == 7) << i;
  }
}

TEST(Rendezvous, FewOrNoMembersGiveWhatThereIs) {
  EXPECT_FALSE(Pair(1, {}).first);
  const RendezvousPair alone = Pair(1, Members(1));
  EXPECT_EQ(alone.first, 0u);
  EXPECT_FALSE(alone.second);
  std::vector<RendezvousMember> none = Members(3, std::numeric_limits<double>::quiet_NaN());
  none[1].weight = 0;
  none[2].weight = -1;
  EXPECT_FALSE(Pair(1, none).first);
}

TEST(Rendezvous, OrderHasAllNamesAndDependsOnTheKey) {
  const std::vector<std::string> names = {"a:1", "b:1", "c:1", "d:1"};
  EXPECT_THAT(RendezvousOrder(5, names), UnorderedElementsAreArray(names));
  EXPECT_EQ(RendezvousOrder(5, names), RendezvousOrder(5, {"d:1", "b:1", "a:1", "c:1"}));
  std::vector<int> firsts(4);
  for (int i = 0; i < 4000; ++i) ++firsts[RendezvousOrder(Key(i), names)[0][0] - 'a'];
  for (const int first : firsts) EXPECT_NEAR(first, 1000, 120);
}

}  // namespace
}  // namespace aludel
