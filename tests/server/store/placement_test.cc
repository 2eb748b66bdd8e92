#include "server/store/placement/placement.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "server/store/placement/use_history.h"

namespace aludel {
namespace {

using Entries = std::vector<std::vector<PlacementOption>>;

// Every placement is tried.
double BestOfAll(const Entries& entries, std::vector<double> room) {
  std::function<double(size_t)> best = [&](size_t i) -> double {
    if (i == entries.size()) return 0;
    double found = best(i + 1);
    for (const PlacementOption& option : entries[i]) {
      if (option.bytes > room[option.device]) continue;
      room[option.device] -= option.bytes;
      found = std::max(found, option.utility + best(i + 1));
      room[option.device] += option.bytes;
    }
    return found;
  };
  return best(0);
}

Entries Draw(std::mt19937* random, int entries, int devices) {
  std::uniform_real_distribution<double> number(1, 10);
  Entries drawn(entries);
  for (auto& options : drawn) {
    for (int device = 0; device < devices; ++device) {
      for (int format = 0; format < 2; ++format) {
        options.push_back({device, number(*random), number(*random) / (1 + device)});
      }
    }
  }
  return drawn;
}

TEST(Placement, NeverExceedsACapacityAndItsBoundIsOne) {
  std::mt19937 random(3);
  double share = 0;
  constexpr int kDraws = 200;
  for (int draw = 0; draw < kDraws; ++draw) {
    const Entries entries = Draw(&random, 6, 2);
    const std::vector<double> capacities = {12, 15};
    const Placement placement = PlaceByUtility(entries, capacities);
    std::vector<double> used(2);
    for (size_t i = 0; i < entries.size(); ++i) {
      if (placement.chosen[i] == Placement::kNowhere) continue;
      const PlacementOption& option = entries[i][placement.chosen[i]];
      used[option.device] += option.bytes;
    }
    EXPECT_LE(used[0], capacities[0]);
    EXPECT_LE(used[1], capacities[1]);
    const double best = BestOfAll(entries, capacities);
    EXPECT_GE(placement.bound, best * (1 - 1e-9));
    EXPECT_LE(placement.utility, best * (1 + 1e-9));
    share += placement.utility / best / kDraws;
  }
  EXPECT_GT(share, 0.9);
}

TEST(Placement, OfManyEntriesComesCloseToItsBound) {
  std::mt19937 random(5);
  const Placement placement = PlaceByUtility(Draw(&random, 2000, 2), std::vector<double>{1500, 2500});
  EXPECT_GT(placement.utility, 0.98 * placement.bound);
}

TEST(Placement, WithRoomForAllEveryEntryHasItsBestOption) {
  std::mt19937 random(7);
  const Entries entries = Draw(&random, 50, 2);
  const Placement placement = PlaceByUtility(entries, std::vector<double>{1e6, 1e6});
  EXPECT_NEAR(placement.utility, placement.bound, 1e-6);
  for (size_t i = 0; i < entries.size(); ++i) {
    const double chosen = entries[i][placement.chosen[i]].utility;
    for (const PlacementOption& option : entries[i]) EXPECT_GE(chosen, option.utility);
  }
}

TEST(Placement, WhatIsWorthNothingIsNotKept) {
  const Entries entries = {{{0, 1, 0}, {0, 2, -5}}, {}};
  const Placement placement = PlaceByUtility(entries, std::vector<double>{100});
  EXPECT_EQ(placement.chosen, std::vector<int>({Placement::kNowhere, Placement::kNowhere}));
  EXPECT_EQ(placement.utility, 0);
}

TEST(Placement, ASmallerFormatIsChosenWhereRoomIsShort) {
  // Exact and large, or a code of a tenth that is worth nearly as much.
  const Entries entries(10, {{0, 100, 10}, {0, 10, 9}});
  EXPECT_EQ(PlaceByUtility(entries, std::vector<double>{1000}).utility, 100);
  EXPECT_EQ(PlaceByUtility(entries, std::vector<double>{100}).utility, 90);
}

// Entries with one list of forms each, on one device that is demoted move by move.
struct Held {
  std::vector<KeptForm> forms;  // of fewer and fewer bytes and seconds
  double uses = 0;
  double rest = 0;  // of being away
  int at = 0;       // a form, or Demotion::kAway
};

std::vector<Held> DrawHeld(std::mt19937* random, int count) {
  std::uniform_real_distribution<double> share(0.2, 0.9);
  std::vector<Held> held(count);
  for (Held& one : held) {
    one.uses = 1 / share(*random);
    KeptForm form{100 * share(*random), 10 * share(*random)};
    for (int i = 0; i < 3; ++i) {
      one.forms.push_back(form);
      form.bytes *= share(*random);
      form.seconds *= share(*random);
    }
    one.rest = form.seconds * share(*random);
  }
  return held;
}

double BytesOf(const std::vector<Held>& held) {
  double bytes = 0;
  for (const Held& one : held) bytes += one.at == Demotion::kAway ? 0 : one.forms[one.at].bytes;
  return bytes;
}

double WorthOf(const std::vector<Held>& held) {
  double worth = 0;
  for (const Held& one : held)
    worth += one.uses * (one.at == Demotion::kAway ? one.rest : one.forms[one.at].seconds);
  return worth;
}

// Makes the cheapest move. False: all are away.
bool Demote(std::vector<Held>* held) {
  Held* cheapest = nullptr;
  Demotion move;
  for (Held& one : *held) {
    if (one.at == Demotion::kAway) continue;
    const Demotion next = NextDemotion(one.forms, one.at, one.rest);
    if (cheapest != nullptr && one.uses * next.price >= cheapest->uses * move.price) continue;
    cheapest = &one;
    move = next;
  }
  if (cheapest != nullptr) cheapest->at = move.to;
  return cheapest != nullptr;
}

TEST(Demotion, EachMoveLeavesTheBestPlacementOfItsBytes) {
  std::mt19937 random(13);
  for (int draw = 0; draw < 100; ++draw) {
    std::vector<Held> held = DrawHeld(&random, 5);
    Entries entries;
    double away = 0;
    for (const Held& one : held) {
      auto& options = entries.emplace_back();
      for (const KeptForm& form : one.forms)
        options.push_back({0, form.bytes, one.uses * (form.seconds - one.rest)});
      away += one.uses * one.rest;
    }
    double worth = WorthOf(held);
    do {
      const double best = away + BestOfAll(entries, {BytesOf(held) * (1 + 1e-12)});
      ASSERT_NEAR(WorthOf(held), best, 1e-9 * best);
      ASSERT_LE(WorthOf(held), worth) << "less room, and worth more";
      worth = WorthOf(held);
    } while (Demote(&held));
    EXPECT_EQ(BytesOf(held), 0);
  }
}

TEST(Demotion, PassesOverAFormThatIsNoBargain) {
  // Half of the bytes are worth more than three quarters.
  const std::vector<KeptForm> forms = {{100, 10}, {75, 5}, {50, 6}};
  EXPECT_EQ(NextDemotion(forms, 0, 0).to, 2);
  EXPECT_NEAR(NextDemotion(forms, 0, 0).price, 4.0 / 50, 1e-12);
  EXPECT_EQ(NextDemotion(forms, 2, 0).to, Demotion::kAway);
  EXPECT_EQ(NextDemotion(forms, 0, 9.9).to, Demotion::kAway) << "a slower device has nearly all of its worth";
}

TEST(DecayedCount, HalvesInEachHalfLifeAndNeverOverflows) {
  DecayedCount count;
  EXPECT_EQ(count.At(0, 60), 0);
  count.Add(0, 60);
  count.Add(60, 60);
  EXPECT_NEAR(count.At(60, 60), 1.5, 1e-12);
  EXPECT_NEAR(count.At(120, 60), 0.75, 1e-12);
  for (int i = 0; i < 1000; ++i) count.Add(1e9, 60);
  EXPECT_NEAR(count.At(1e9, 60), 1000, 1e-3);
}

TEST(UsedWithin, IsHalfOfThemInAHalfLifeAndAllOfThemInTheEnd) {
  EXPECT_EQ(UsedWithin(0, 300), 0);
  EXPECT_NEAR(UsedWithin(300, 300), 0.5, 1e-12);
  EXPECT_NEAR(UsedWithin(900, 300), 0.875, 1e-12);
  EXPECT_EQ(UsedWithin(std::numeric_limits<double>::infinity(), 300), 1);
}

DecayedCount Uses(int count, double now) {
  DecayedCount uses;
  for (int i = 0; i < count; ++i) uses.Add(now, 60);
  return uses;
}

TEST(UseHistory, FindsWhatWasPutLastOfAKeyAndNothingElse) {
  std::mt19937_64 random(std::random_device{}());
  UseHistory history(1 << 12);
  EXPECT_TRUE(history.Find(0).empty());
  std::map<uint64_t, double> put;
  for (int i = 0; i < 5000; ++i) {
    // Of fewer keys than there are places.
    const uint64_t key = (random() % 1500) * 0x9E3779B97F4A7C15;
    const DecayedCount uses = Uses(1 + static_cast<int>(random() % 5), i);
    history.Put(key, uses);
    put[key] = uses.Log2AtEpoch();
  }
  size_t found = 0;
  for (const auto& [key, uses] : put) {
    const DecayedCount known = history.Find(key);
    if (known.empty()) continue;
    ++found;
    EXPECT_EQ(known.Log2AtEpoch(), uses);
  }
  EXPECT_GT(found, put.size() * 99 / 100);
  EXPECT_TRUE(history.Find(1).empty());
  history.Clear();
  for (const auto& [key, uses] : put) EXPECT_TRUE(history.Find(key).empty());
}

TEST(UseHistory, KeepsWhatWasUsedMoreUntilThatIsLongAgo) {
  std::mt19937_64 random(std::random_device{}());
  UseHistory history(1 << 12);
  std::vector<uint64_t> often;
  for (int i = 0; i < 100; ++i) often.push_back(random());
  for (const uint64_t key : often) history.Put(key, Uses(3, 0));
  const auto known = [&] {
    return std::count_if(often.begin(), often.end(),
                         [&](uint64_t key) { return !history.Find(key).empty(); });
  };
  for (int i = 0; i < 100000; ++i) history.Put(random(), Uses(1, 30));
  EXPECT_EQ(known(), 100);
  for (int i = 0; i < 100000; ++i) history.Put(random(), Uses(1, 300));
  EXPECT_EQ(known(), 0);
}

}  // namespace
}  // namespace aludel
