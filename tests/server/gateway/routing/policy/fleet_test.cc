#include "server/gateway/routing/policy/fleet.h"

#include <limits>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using Standing = ReplicaView::Standing;

Standing AllReady(size_t) { return Standing::kReady; }

PrefixKeys Prompt(int64_t tokens, int32_t first) {
  std::vector<int32_t> prompt(static_cast<size_t>(tokens));
  std::iota(prompt.begin(), prompt.end(), first);
  return MakePrefixKeys({1}, prompt);
}

class FleetTest : public ::testing::Test {
 protected:
  // Replicas that have run for long, and prefill 1,000 tokens in .1 s.
  Fleet Make(int replicas, const Fleet::Options& options = {}) {
    Fleet fleet(options);
    for (int i = 0; i < replicas; ++i) fleet.Report(fleet.Add(absl::StrCat("d", i)), kGrown, 0);
    return fleet;
  }
  static size_t Chosen(Fleet* fleet, const PrefixKeys& keys, double now) {
    return *fleet->Choose(keys, AllReady, now).replica;
  }
  // Chooses, and sends.
  static size_t Send(Fleet* fleet, const PrefixKeys& keys, double now) {
    const size_t slot = Chosen(fleet, keys, now);
    fleet->Sent(slot, keys, fleet->ExpectedPrefill(slot, keys.tokens), now);
    return slot;
  }

  static constexpr ReplicaReport kGrown = {.places = 64, .age_seconds = 1000};
};

TEST_F(FleetTest, AConversationStaysWithItsServer) {
  Fleet fleet = Make(8);
  const size_t home = Send(&fleet, Prompt(640, 0), 1);
  fleet.Ended(home, Fleet::Outcome::kServed, 2);
  for (int turn = 2; turn < 10; ++turn) {
    const PrefixKeys keys = Prompt(640 * turn, 0);
    EXPECT_EQ(Send(&fleet, keys, turn), home);
    EXPECT_GE(fleet.views()[home].cached_tokens, 640 * (turn - 1) * 15 / 16);
    fleet.Ended(home, Fleet::Outcome::kServed, turn + 0.5);
  }
}

TEST_F(FleetTest, AClientsKeyIsTheHomeOfPromptsThatBeginDifferently) {
  Fleet fleet = Make(8);
  std::vector<int> homes(8);
  for (uint64_t key = 0; key < 64; ++key) {
    PrefixKeys keys = Prompt(320, static_cast<int32_t>(key) * 100'000);
    keys.home = HomeKey({1}, absl::StrCat("session ", key));
    const size_t home = Chosen(&fleet, keys, 1);
    ++homes[home];
    for (int32_t i = 1; i < 4; ++i) {
      PrefixKeys other = Prompt(320, static_cast<int32_t>(key) * 100'000 + i * 10'000);
      other.home = keys.home;
      EXPECT_EQ(Chosen(&fleet, other, 1), home);
    }
  }
  for (const int count : homes) EXPECT_GT(count, 1);
}

TEST_F(FleetTest, AClientsKeyDoesNotMakeABeginningHot) {
  Fleet fleet = Make(8), other = Make(8);
  PrefixKeys keyed = Prompt(640, 0);
  for (int i = 0; i < 200; ++i) {
    keyed.home = HomeKey({1}, absl::StrCat(i));
    Chosen(&fleet, keyed, 1);
  }
  const PrefixKeys plain = Prompt(640, 0);
  EXPECT_EQ(Chosen(&fleet, plain, 1), Chosen(&other, plain, 1));
  EXPECT_EQ(fleet.depth(), 0u);
}

TEST_F(FleetTest, GatewaysThatShareNothingAgree) {
  Fleet one = Make(8), other = Make(8);
  for (int32_t i = 0; i < 100; ++i) {
    EXPECT_EQ(Chosen(&one, Prompt(640, i * 10'000), 1), Chosen(&other, Prompt(640, i * 10'000), 1));
  }
}

TEST_F(FleetTest, OwnRequestsCountAtOnce) {
  Fleet fleet = Make(4, {.objective_seconds = 0.15});
  std::vector<int> counts(4);
  // One prompt that all ask for, not cached yet anywhere in the servers' reports, and no time to answer.
  for (int i = 0; i < 40; ++i) ++counts[Send(&fleet, Prompt(1000, i * 100'000), 1)];
  for (const int count : counts) EXPECT_NEAR(count, 10, 2);
}

TEST_F(FleetTest, LateIsWhatIsLateAtEveryServer) {
  Fleet fleet = Make(2);
  const auto wait = [&](double first, double second, double now) {
    ReplicaReport report = kGrown;
    report.waiting_seconds = first;
    fleet.Report(0, report, now);
    report.waiting_seconds = second;
    fleet.Report(1, report, now);
  };
  const auto late = [&](int64_t tokens, double now) {
    fleet.Choose(Prompt(tokens, 0), AllReady, now);
    return fleet.LateBy(/*max_ttft=*/1, tokens);
  };
  wait(5, 0.5, 1);
  EXPECT_EQ(late(1000, 1), std::nullopt);
  wait(5, 3, 2);
  EXPECT_NEAR(late(1000, 2).value_or(0), 3.1 - 1, 1e-9);
  // Two seconds by itself: it may wait for half a second.
  wait(5, 0.4, 3);
  EXPECT_EQ(late(20'000, 3), std::nullopt);
  wait(5, 0.7, 4);
  EXPECT_NEAR(late(20'000, 4).value_or(0), 0.2, 1e-9);
  // It has its answer before its deadline, or not: no half is taken of what is left.
  EXPECT_NEAR(fleet.LateBy(1, 20'000, /*time_left=*/2.8).value_or(0), 0.2, 1e-9);
  EXPECT_NEAR(fleet.LateBy(1, 20'000, /*time_left=*/1).value_or(0), 1.7, 1e-9);
  constexpr double kAny = std::numeric_limits<double>::infinity();
  EXPECT_NEAR(fleet.LateBy(kAny, 20'000, /*time_left=*/2.5).value_or(0), 0.2, 1e-9);
  EXPECT_EQ(fleet.LateBy(kAny, 20'000, /*time_left=*/1), std::nullopt)
      << "it would take as long without a queue";
  EXPECT_EQ(fleet.LateBy(kAny, 20'000), std::nullopt);
  wait(0, 0, 4);
  EXPECT_EQ(late(15'000, 4), std::nullopt);
  EXPECT_NEAR(fleet.LateBy(1, 15'000, /*time_left=*/1.2).value_or(0), 0.3, 1e-9);
  EXPECT_EQ(fleet.LateBy(2, 15'000, /*time_left=*/1.6), std::nullopt);
  // Where none is there, nothing is late.
  fleet.Choose(
      Prompt(1000, 0), [](size_t) { return Standing::kOut; }, 5);
  EXPECT_EQ(fleet.LateBy(1, 1000), std::nullopt);
}

TEST_F(FleetTest, AServerThatIsNotChosenMakesNothingInTime) {
  Fleet fleet = Make(2);
  ReplicaReport report = kGrown;
  report.running = report.places;  // and nothing of prefill
  fleet.Report(0, report, 1);
  report = kGrown;
  report.waiting_seconds = 3;
  fleet.Report(1, report, 1);
  EXPECT_EQ(Chosen(&fleet, Prompt(1000, 0), 1), 1u);
  EXPECT_NEAR(fleet.LateBy(1, 1000).value_or(0), 2.1, 1e-9);
  // Where both are full it may go to the first.
  report.running = report.places;
  fleet.Report(1, report, 1);
  EXPECT_EQ(Chosen(&fleet, Prompt(1000, 0), 1), 0u);
  EXPECT_EQ(fleet.LateBy(1, 1000), std::nullopt);
}

TEST_F(FleetTest, WhatDecodesDoesNotGatherAtOneServer) {
  for (const int replicas : {2, 5}) {
    Fleet fleet = Make(replicas);
    std::vector<int> counts(static_cast<size_t>(replicas));
    // One beginning, cached after the first of them, and answers that take longer than all of this.
    for (int i = 0; i < 60; ++i) ++counts[Send(&fleet, Prompt(1000, 0), i)];
    for (const int count : counts) EXPECT_LE(count, 60 / replicas * 1.5 + 6) << replicas;
  }
}

TEST_F(FleetTest, EveryChoiceOfARequestTakesAPlace) {
  Fleet fleet = Make(2);
  const PrefixKeys keys = Prompt(640, 0);
  const size_t home = Chosen(&fleet, keys, 1);
  fleet.Sent(home, keys, 0, 1, /*places=*/32);
  EXPECT_NE(Chosen(&fleet, keys, 2), home);
  fleet.Ended(home, Fleet::Outcome::kServed, 3, /*places=*/32);
  EXPECT_EQ(Chosen(&fleet, keys, 4), home);
}

TEST_F(FleetTest, ACacheThatWasResetIsNotBelievedIn) {
  Fleet fleet = Make(2);
  const PrefixKeys keys = Prompt(640, 0);
  const size_t home = Send(&fleet, keys, 1);
  fleet.Ended(home, Fleet::Outcome::kServed, 2);
  Chosen(&fleet, keys, 3);
  EXPECT_GT(fleet.views()[home].cached_tokens, 0);
  fleet.ForgetCache(home);
  Chosen(&fleet, keys, 4);
  EXPECT_EQ(fleet.views()[home].cached_tokens, 0);
}

TEST_F(FleetTest, AReportTakesWhatWasSentBeforeItAndNoMore) {
  Fleet fleet = Make(1);
  const PrefixKeys keys = Prompt(1000, 0);
  fleet.Sent(0, keys, 0.5, 1.0);
  fleet.Sent(0, keys, 0.5, 1.2);
  EXPECT_NEAR(fleet.wait_seconds(0, 1.2), 0.8, 1e-9);
  // Made between the two: the server had done part of the first.
  ReplicaReport report = kGrown;
  report.waiting_seconds = 0.3;
  fleet.Report(0, report, 1.1);
  EXPECT_NEAR(fleet.wait_seconds(0, 1.2), 0.7, 1e-9);
  EXPECT_NEAR(fleet.wait_seconds(0, 1.5), 0.4, 1e-9);
  EXPECT_NEAR(fleet.wait_seconds(0, 9), 0, 1e-9);
  // One that was overtaken says nothing.
  report.waiting_seconds = 100;
  fleet.Report(0, report, 1.05);
  EXPECT_NEAR(fleet.wait_seconds(0, 1.5), 0.4, 1e-9);
}

TEST_F(FleetTest, WhatOthersLeftInCachesIsLearned) {
  Fleet fleet = Make(8);
  const PrefixKeys keys = Prompt(6400, 0);
  size_t home = Chosen(&fleet, keys, 1);
  const auto pair = fleet.Choose(keys, AllReady, 1).candidates;
  ASSERT_EQ(home, *pair.first);
  fleet.Learn(*pair.second, keys);
  EXPECT_EQ(Chosen(&fleet, keys, 1), *pair.second);
  fleet.Forget(*pair.second, 1);
  EXPECT_EQ(Chosen(&fleet, keys, 1), home);
}

TEST_F(FleetTest, ANewServerStartsSlowly) {
  Fleet fleet = Make(8);
  std::vector<size_t> before;
  const auto key = [](int32_t i) { return Prompt(64, i * 1000); };
  for (int32_t i = 0; i < 1000; ++i) before.push_back(Chosen(&fleet, key(i), 100));
  const size_t added = fleet.Add("new");
  ReplicaReport young = kGrown;
  young.age_seconds = 0;
  fleet.Report(added, young, 100);
  const auto share = [&](double now) {
    int moved = 0;
    for (int32_t i = 0; i < 1000; ++i) {
      const size_t chosen = Chosen(&fleet, key(i), now);
      EXPECT_TRUE(chosen == added || chosen == before[static_cast<size_t>(i)]) << i;
      moved += chosen == added ? 1 : 0;
    }
    return moved / 1000.0;
  };
  EXPECT_LT(share(100), 0.03);
  EXPECT_NEAR(share(200), 1 / 9.0, 0.03);
}

TEST_F(FleetTest, WhereAllAreNewNoneIs) {
  Fleet fleet = Make(0);
  for (int i = 0; i < 4; ++i) fleet.Report(fleet.Add(absl::StrCat("d", i)), {.places = 64}, 0);
  fleet.Choose(Prompt(64, 0), AllReady, 0);
  for (const ReplicaView& view : fleet.views()) EXPECT_EQ(view.weight, 1);
}

TEST_F(FleetTest, WhereRequestsFailIsLeftOutForAWhile) {
  Fleet fleet = Make(4);
  const PrefixKeys keys = Prompt(64, 0);
  const size_t home = Chosen(&fleet, keys, 1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(Send(&fleet, keys, 0.1 * i), home);
    EXPECT_EQ(fleet.Ended(home, Fleet::Outcome::kFailed, 1), i == 2);
  }
  EXPECT_NE(Chosen(&fleet, keys, 1.1), home);
  EXPECT_EQ(Chosen(&fleet, keys, 7), home);
  // The next failure leaves it out for longer, a success clears it.
  EXPECT_TRUE(fleet.Ended(home, Fleet::Outcome::kFailed, 7));
  EXPECT_NE(Chosen(&fleet, keys, 16), home);
  EXPECT_EQ(Chosen(&fleet, keys, 18), home);
  fleet.Ended(home, Fleet::Outcome::kServed, 18);
  EXPECT_FALSE(fleet.Ended(home, Fleet::Outcome::kFailed, 19));
}

TEST_F(FleetTest, WhereMostFailNoneIsLeftOut) {
  Fleet fleet = Make(3);
  const PrefixKeys keys = Prompt(64, 0);
  const size_t home = Chosen(&fleet, keys, 1);
  for (size_t slot = 0; slot < 3; ++slot) {
    for (int i = 0; i < 3; ++i) fleet.Ended(slot, Fleet::Outcome::kFailed, 1);
  }
  EXPECT_EQ(Chosen(&fleet, keys, 1.1), home);
}

TEST_F(FleetTest, AFullServerIsASpare) {
  Fleet fleet = Make(2);
  ReplicaReport small = kGrown;
  small.places = 2;
  const PrefixKeys keys = Prompt(64, 0);
  const size_t home = Chosen(&fleet, keys, 1);
  fleet.Report(home, small, 1);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Send(&fleet, keys, 1 + i), home);
  EXPECT_NE(Chosen(&fleet, keys, 10), home);
  fleet.Ended(home, Fleet::Outcome::kServed, 11);
  EXPECT_EQ(Chosen(&fleet, keys, 12), home);
  // By other gateways' requests, too.
  small.running = 9;
  fleet.Report(home, small, 13);
  EXPECT_NE(Chosen(&fleet, keys, 13), home);
}

TEST_F(FleetTest, ASlotIsUsedAgainWithoutItsPast) {
  Fleet fleet = Make(3);
  const PrefixKeys keys = Prompt(6400, 0);
  fleet.Sent(1, keys, 5, 1);
  fleet.Remove(1);
  EXPECT_NE(Chosen(&fleet, keys, 1), 1u);
  EXPECT_EQ(fleet.views()[1].standing, Standing::kOut);
  EXPECT_EQ(fleet.Add("other"), 1u);
  fleet.Choose(keys, AllReady, 1);
  EXPECT_EQ(fleet.views()[1].cached_tokens, 0);
  EXPECT_EQ(fleet.views()[1].wait_seconds, 0);
  EXPECT_EQ(fleet.views()[1].pending, 0);
}

TEST_F(FleetTest, AReplicaWithoutACacheIsNoHomeWhereOthersHaveOne) {
  Fleet fleet = Make(3);
  ReplicaReport without = kGrown;
  without.cache_tokens = 0;
  fleet.Report(0, without, 1);
  for (int32_t i = 0; i < 50; ++i) EXPECT_NE(Chosen(&fleet, Prompt(640, i * 10'000), 1), 0u);
  for (const size_t slot : {1, 2}) fleet.Report(slot, without, 1);
  std::vector<int> chosen(3);
  for (int32_t i = 0; i < 50; ++i) ++chosen[Chosen(&fleet, Prompt(640, i * 10'000), 1)];
  for (const int times : chosen) EXPECT_GT(times, 0);
}

TEST_F(FleetTest, ARequestThatWasTurnedAwayLeavesNothing) {
  Fleet fleet = Make(2);
  const PrefixKeys keys = Prompt(640, 0);
  const size_t home = Chosen(&fleet, keys, 1);
  EXPECT_NEAR(fleet.WaitLimit(home, 1), 0.2, 1e-9);  // a tenth of the objective
  fleet.Sent(home, keys, 0.064, 1);
  EXPECT_NEAR(fleet.WaitLimit(home, 1), 0.264, 1e-9);
  ReplicaReport busy = kGrown;
  busy.waiting_seconds = 9;
  fleet.Report(home, busy, 1.001);
  fleet.Ended(home, Fleet::Outcome::kRefused, 1.001);
  fleet.TurnedAway(home, keys, 0);
  EXPECT_NE(Chosen(&fleet, keys, 1.001), home);
  EXPECT_EQ(fleet.views()[home].cached_tokens, 0);
  EXPECT_EQ(fleet.views()[home].pending, 0);
  EXPECT_EQ(fleet.wait_seconds(home, 1.001), 9);
}

TEST_F(FleetTest, WhatItHadBeforeItHasStill) {
  Fleet fleet = Make(2);
  const size_t home = Send(&fleet, Prompt(320, 0), 1);
  const PrefixKeys longer = Prompt(640, 0);
  EXPECT_EQ(Chosen(&fleet, longer, 2), home);
  const int64_t cached = fleet.views()[home].cached_tokens;
  EXPECT_EQ(cached, 320);
  fleet.Sent(home, longer, 0.032, 2);
  fleet.TurnedAway(home, longer, cached);
  Chosen(&fleet, longer, 3);
  EXPECT_EQ(fleet.views()[home].cached_tokens, cached);
}

TEST_F(FleetTest, WhatWasMeasuredBeforeAReportSaysNothing) {
  Fleet fleet = Make(1);
  ReplicaReport idle = kGrown;
  fleet.Report(0, idle, 5);
  fleet.Measured(0, 30, 4);
  EXPECT_EQ(fleet.wait_seconds(0, 5), 0);
  fleet.Measured(0, 30, 6);
  EXPECT_EQ(fleet.wait_seconds(0, 6), 30);
}

// Whose caches are known, by what they say.
class FleetOfKnownCachesTest : public FleetTest {
 protected:
  static PrefixKeys Known(int64_t tokens, int32_t first) {
    std::vector<int32_t> prompt(static_cast<size_t>(tokens));
    std::iota(prompt.begin(), prompt.end(), first);
    return MakePrefixKeys({1}, prompt, /*with_blocks=*/true);
  }
  static std::vector<KeyChange> Told(const PrefixKeys& keys) {
    std::vector<KeyChange> told;
    for (size_t i = 0; i < keys.blocks.size(); ++i) {
      const bool is_end = IsPrefixEnd(static_cast<int64_t>(i + 1) * kKeyTokens);
      told.push_back({keys.blocks[i], is_end ? KeyChange::kPrefixEnd : uint8_t{0}});
    }
    return told;
  }
};

TEST_F(FleetOfKnownCachesTest, AGatewayThatHasJustStartedFindsThePrompt) {
  Fleet fleet = Make(8, {.slow_start_seconds = 0});
  const PrefixKeys keys = Known(1000, 0);
  const size_t home = Chosen(&fleet, keys, 1);
  const size_t holder = (home + 3) % 8;
  for (size_t slot = 0; slot < 8; ++slot) {
    fleet.CacheKnown(slot, slot == holder ? Told(Known(800, 0)) : std::vector<KeyChange>(), kKeyTokens);
  }
  EXPECT_EQ(Chosen(&fleet, keys, 1), holder);
  EXPECT_EQ(fleet.CachedTokens(holder, keys), 800);
}

TEST_F(FleetOfKnownCachesTest, WhatIsSaidCountsInPlaceOfWhatWasSent) {
  Fleet fleet = Make(1);
  const PrefixKeys keys = Known(1000, 0);
  Send(&fleet, keys, 1);
  Chosen(&fleet, keys, 1.1);
  EXPECT_EQ(fleet.CachedTokens(0, keys), 960);
  // It says that nothing is there, and was sent nothing since.
  fleet.CacheKnown(0, {}, kKeyTokens);
  Chosen(&fleet, keys, 1.2);
  EXPECT_EQ(fleet.CachedTokens(0, keys), 0);
  fleet.CacheChanged(0, Told(Known(500, 0)));
  Chosen(&fleet, keys, 1.3);
  EXPECT_EQ(fleet.CachedTokens(0, keys), 496);
  // Of adapters it does not tell.
  PrefixKeys others = keys;
  others.has_blocks = false;
  Chosen(&fleet, others, 1.3);
  EXPECT_EQ(fleet.CachedTokens(0, others), 960);
  // Without its word, what was sent is believed again.
  fleet.CacheUnknown(0);
  Chosen(&fleet, keys, 1.4);
  EXPECT_EQ(fleet.CachedTokens(0, keys), 960);
}

TEST_F(FleetOfKnownCachesTest, WhatIsUnderWayIsFollowed) {
  Fleet fleet = Make(1);
  fleet.CacheKnown(0, {}, kKeyTokens);
  const PrefixKeys keys = Known(1000, 0);
  Send(&fleet, keys, 1);
  Chosen(&fleet, keys, 1.1);
  EXPECT_EQ(fleet.CachedTokens(0, keys), 960);
  fleet.Ended(0, Fleet::Outcome::kRefused, 1.1);
  fleet.TurnedAway(0, keys, 0);
  Chosen(&fleet, keys, 1.2);
  EXPECT_EQ(fleet.CachedTokens(0, keys), 0);
  Send(&fleet, keys, 2);
  // What it was to tell of by now it does not have.
  Chosen(&fleet, keys, 60);
  EXPECT_EQ(fleet.CachedTokens(0, keys), 0);
}

TEST_F(FleetOfKnownCachesTest, ASlotThatWasRemovedIsNotKnown) {
  Fleet fleet = Make(1);
  fleet.CacheKnown(0, Told(Known(640, 0)), kKeyTokens);
  fleet.Remove(0);
  EXPECT_EQ(fleet.Add("another"), 0u);
  EXPECT_FALSE(fleet.knows_cache(0));
  Chosen(&fleet, Known(1000, 0), 1);
  EXPECT_EQ(fleet.CachedTokens(0, Known(1000, 0)), 0);
}

}  // namespace
}  // namespace aludel
