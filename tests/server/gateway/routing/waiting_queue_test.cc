#include "server/gateway/routing/waiting_queue.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;
using Entry = WaitingQueue::Entry;

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(1000 + seconds); }

class Waiting : public ::testing::Test {
 protected:
  uint64_t Push(const std::string& tenant, int priority = 0, double deadline = 100, int64_t tokens = 10) {
    queue_.Push({.id = ++last_id_,
                 .tenant = tenant,
                 .tokens = tokens,
                 .priority = priority,
                 .deadline = At(deadline)},
                At(0));
    return last_id_;
  }
  // Gives the next entry a place; its tenant and number.
  std::string Start(double at) {
    const Entry* next = queue_.Next(At(at));
    if (next == nullptr) return "none";
    const Entry entry = *next;
    queue_.Remove(entry.id);
    queue_.Started(entry.tenant, entry.weight, entry.places, At(at), /*waited=*/true);
    return absl::StrCat(entry.tenant, entry.id);
  }
  std::string Refusal(const std::string& tenant, double now, double deadline, int64_t tokens = 10) {
    const auto refusal = queue_.Check(tenant, tokens, At(now), At(deadline));
    return refusal ? absl::StrCat(refusal->reason, " ", refusal->retry_after_seconds) : "";
  }

  WaitingQueue queue_{{.max_waiting = 5, .max_waiting_tokens = 100}};
  uint64_t last_id_ = 0;
};

TEST_F(Waiting, OneTenantIsServedInOrderOfPriorityAndArrival) {
  for (int priority : {0, 0, -1}) Push("a", priority);
  EXPECT_EQ(Start(0), "a3");
  EXPECT_EQ(Start(0), "a1");
  EXPECT_EQ(Start(0), "a2");
  EXPECT_EQ(Start(0), "none");
  EXPECT_EQ(queue_.size(), 0);
  EXPECT_EQ(queue_.tokens(), 0);
  EXPECT_EQ(queue_.places_taken(), 3);
}

TEST_F(Waiting, ATenantWithManyRequestsHoldsNoOtherUp) {
  for (int i = 0; i < 3; ++i) Push("a");
  Push("b");
  EXPECT_EQ(Start(0), "a1");
  EXPECT_EQ(Start(0), "b4");
  EXPECT_EQ(Start(0), "a2");
  Push("c");
  EXPECT_EQ(Start(0), "c5");
  queue_.Ended("b", 1, At(0), std::nullopt);
  Push("b");
  EXPECT_EQ(Start(0), "b6") << "it begins where the others are";
  EXPECT_EQ(Start(0), "a3");
}

TEST_F(Waiting, RefusesWhatIsBeyondItsBounds) {
  for (int i = 0; i < 4; ++i) Push("a", 0, 100, 20);
  EXPECT_EQ(Refusal("b", 0, 100, 20), "");
  EXPECT_EQ(Refusal("b", 0, 100, 21), "tokens 1");
  EXPECT_EQ(Refusal("b", 0, 100, 0), "") << "not known yet";
  Push("a");
  EXPECT_EQ(Refusal("b", 0, 100, 0), "full 1");
  WaitingQueue empty({.max_waiting = 5, .max_waiting_tokens = 100});
  EXPECT_FALSE(empty.Check("a", 1000, At(0), At(1))) << "one that is larger than all may wait alone";
  EXPECT_TRUE(WaitingQueue({}).Check("a", 1, At(0), At(1)));
}

TEST_F(Waiting, PredictsTheWaitFromThePlacesGivenSoFarAndRefusesWhatComesTooLate) {
  for (int i = 0; i < 5; ++i) Push("a");
  EXPECT_EQ(queue_.PredictWait("a"), std::nullopt);
  for (double at : {2.0, 4.0, 6.0}) Start(at);  // a place every 2 s
  queue_.Ended("a", 1, At(6), absl::Seconds(5));
  EXPECT_EQ(queue_.PredictWait("a"), absl::Seconds(6));  // behind two
  EXPECT_EQ(queue_.PredictWait("b"), absl::Seconds(4));  // in turns with them
  EXPECT_EQ(Refusal("a", 6, 17.1), "");
  EXPECT_EQ(Refusal("a", 6, 16.9), "deadline 1");
  EXPECT_EQ(Refusal("a", 6, 8), "deadline 9");
  EXPECT_THAT(queue_.Check("a", 1, At(6), At(8))->message,
              HasSubstr("the answer is expected in 11.0 s, the deadline is in 2.0 s"));
  while (Start(8) != "none") {
  }
  EXPECT_EQ(queue_.PredictWait("a"), absl::ZeroDuration());
  EXPECT_EQ(Refusal("a", 8, 8.1), "") << "where none waits the decode server says what it expects";
}

TEST_F(Waiting, TimeInWhichNoneWaitedIsNoWait) {
  Push("a");
  Start(0);
  Push("a");
  Push("a");
  Start(50);
  Start(51);
  Push("a");
  EXPECT_EQ(queue_.PredictWait("a"), absl::Seconds(2));
}

TEST_F(Waiting, WhatCannotBeInTimeAnyMoreIsRefusedWhereItWaits) {
  const uint64_t early = Push("a", 0, 10);
  Push("a", 0, 20);
  EXPECT_TRUE(queue_.RemoveHopeless(At(9.9)).empty()) << "nothing was measured";
  queue_.Started("b", 1, 1, At(0), /*waited=*/false);
  queue_.Ended("b", 1, At(4), absl::Seconds(4));
  EXPECT_TRUE(queue_.RemoveHopeless(At(5.9)).empty());
  const auto hopeless = queue_.RemoveHopeless(At(6.1));
  ASSERT_EQ(hopeless.size(), 1);
  EXPECT_EQ(hopeless[0].first, early);
  EXPECT_STREQ(hopeless[0].second.reason, "deadline");
  EXPECT_EQ(queue_.size(), 1);
  EXPECT_FALSE(queue_.Remove(early));
}

TEST_F(Waiting, WhatHasPassedItsDeadlineIsRefusedWithoutAnyFigures) {
  Push("a", 0, 10);
  const auto hopeless = queue_.RemoveHopeless(At(10));
  ASSERT_EQ(hopeless.size(), 1);
  EXPECT_THAT(hopeless[0].second.message, HasSubstr("the deadline passed"));
}

TEST_F(Waiting, TenantsTakeTurnsAtOnePlace) {
  for (int i = 0; i < 3; ++i) Push("a");
  EXPECT_EQ(Start(0), "a1");
  Push("b");
  Push("b");
  double at = 0;
  for (const char* next : {"b4", "a2", "b5", "a3"}) {
    queue_.Ended(next[0] == 'b' ? "a" : "b", 1, At(++at), std::nullopt);
    EXPECT_EQ(Start(at), next);
  }
}

TEST_F(Waiting, PlacesThatEndTogetherAreOneEventOfItsTime) {
  WaitingQueue queue({.max_waiting = 1000, .max_waiting_tokens = 10000});
  for (uint64_t id = 1; id <= 200; ++id)
    queue.Push({.id = id, .tenant = "a", .tokens = 1, .deadline = At(1000)}, At(0));
  const auto batch = [&queue](double at) {
    for (int i = 0; i < 16; ++i) {
      const Entry next = *queue.Next(At(at));
      queue.Remove(next.id);
      queue.Started("a", 1, 1, At(at), /*waited=*/true);
    }
  };
  for (double at : {0.0, 8.0, 16.0, 24.0}) batch(at);
  const double expected = 8.0 / 16 * (queue.size() + 1);
  EXPECT_NEAR(absl::ToDoubleSeconds(*queue.PredictWait("a")), expected, .25 * expected);
  // What came back was no place.
  batch(24.1);
  for (int i = 0; i < 16; ++i) queue.Returned("a", 1, At(24.1));
  EXPECT_NEAR(absl::ToDoubleSeconds(*queue.PredictWait("a")), 8.0 / 16 * (queue.size() + 1), .25 * expected);
}

TEST_F(Waiting, OneThatGoesFirstIsPredictedToGoFirst) {
  for (int i = 0; i < 5; ++i) Push("a");
  for (double at : {0.0, 1.0}) Start(at);
  EXPECT_EQ(queue_.PredictWait("a", /*priority=*/0), absl::Seconds(4));
  EXPECT_EQ(queue_.PredictWait("a", /*priority=*/-1), absl::Seconds(1));
}

TEST_F(Waiting, RequestsOfSeveralChoicesTakeAsManyPlaces) {
  queue_.Push({.id = 1, .tenant = "a", .tokens = 1, .places = 4, .deadline = At(9)}, At(0));
  queue_.Push({.id = 2, .tenant = "a", .tokens = 1, .deadline = At(9)}, At(0));
  EXPECT_EQ(queue_.waiting_places(), 5);
  EXPECT_EQ(queue_.Next(At(0))->places, 4);
  EXPECT_EQ(Start(0), "a1");
  EXPECT_EQ(queue_.places_taken(), 4);
  EXPECT_EQ(queue_.waiting_places(), 1);
  EXPECT_EQ(Start(3), "a2");
  queue_.Ended("a", 4, At(3), absl::Seconds(1));
  EXPECT_EQ(queue_.places_taken(), 1);
}

// Tenants whose requests hold places for their own times, each with `waiting` of them always waiting.
class Busy {
 public:
  struct Tenant {
    int weight;
    double seconds;  // a request's time at its place, on average
    int waiting = 8;
    double used = 0;        // seconds at places
    double last_begun = 0;  // when a place was given to it, and the longest time between two
    double longest_gap = 0;
  };

  Busy(std::vector<Tenant> tenants, int places, uint32_t seed)
      : tenants_(std::move(tenants)), places_(places), random_(seed) {
    for (size_t i = 0; i < tenants_.size(); ++i) {
      for (int j = 0; j < tenants_[i].waiting; ++j) Push(i, 0);
    }
  }

  std::vector<Tenant> Run(double until) {
    double now = 0;
    while (true) {
      while (static_cast<int>(running_.size()) < places_) Begin(now);
      const auto first = running_.begin();
      const auto [tenant, begun] = first->second;
      now = first->first;
      if (now > until) return tenants_;
      running_.erase(first);
      tenants_[tenant].used += now - begun;
      queue_.Ended(Name(tenant), 1, At(now), absl::Seconds(now - begun));
    }
  }

 private:
  static std::string Name(size_t tenant) { return std::string(1, static_cast<char>('a' + tenant)); }
  void Push(size_t tenant, double now) {
    queue_.Push(
        {.id = ++last_id_, .tenant = Name(tenant), .weight = tenants_[tenant].weight, .deadline = At(1e9)},
        At(now));
  }
  void Begin(double now) {
    const Entry next = *queue_.Next(At(now));
    const size_t tenant = next.tenant[0] - 'a';
    Tenant& one = tenants_[tenant];
    queue_.Remove(next.id);
    Push(tenant, now);
    queue_.Started(next.tenant, next.weight, 1, At(now), /*waited=*/true);
    one.longest_gap = std::max(one.longest_gap, now - one.last_begun);
    one.last_begun = now;
    std::uniform_real_distribution<double> around(.5 * one.seconds, 1.5 * one.seconds);
    running_.emplace(now + around(random_), std::pair(tenant, now));
  }

  std::vector<Tenant> tenants_;
  const int places_;
  std::mt19937 random_;
  WaitingQueue queue_{{.max_waiting = 1000, .max_waiting_tokens = 1000}};
  uint64_t last_id_ = 0;
  std::multimap<double, std::pair<size_t, double>> running_;  // by end: the tenant and the beginning
};

TEST(FairShares, TimeAtPlacesFollowsWeightsWhateverARequestTakes) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  for (int places : {1, 3, 16}) {
    const double until = 40000.0 / places;
    const auto tenants = Busy({{1, 2}, {2, 10}, {4, 1}}, places, seed).Run(until);
    for (const Busy::Tenant& tenant : tenants) {
      EXPECT_NEAR(tenant.used / (places * until), tenant.weight / 7.0, .03)
          << places << " places, " << tenant.weight;
      EXPECT_LT(tenant.longest_gap, 200) << "weight " << tenant.weight;
    }
  }
}

TEST_F(Waiting, WhatWasNotUsedInAQuietHourIsNoClaimOnABusyOne) {
  queue_.Started("a", 1, 4, At(0), /*waited=*/false);
  queue_.Started("b", 1, 1, At(3600), /*waited=*/false);
  queue_.Ended("a", 4, At(3600), absl::Seconds(3600));
  queue_.Started("a", 1, 1, At(3600), /*waited=*/false);
  for (int i = 0; i < 2; ++i) Push("b"), Push("a");
  std::string order;
  for (int i = 0; i < 4; ++i) order += Start(3600)[0];
  EXPECT_THAT(order, testing::AnyOf("abab", "baba", "abba", "baab"));
}

TEST_F(Waiting, WhatWasUsedInAQuietHourIsNoDebtInABusyOne) {
  queue_.Started("a", 1, 4, At(0), /*waited=*/false);
  for (int i = 0; i < 4; ++i) {
    queue_.Push({.id = ++last_id_, .tenant = "b", .deadline = At(9999)}, At(3600));
  }
  queue_.Push({.id = ++last_id_, .tenant = "a", .deadline = At(9999)}, At(3600));
  queue_.Ended("a", 4, At(3601), absl::Seconds(3601));
  std::string order;
  for (int i = 0; i < 5; ++i) order += Start(3601)[0];
  EXPECT_LE(order.find('a'), 1) << order;
}

TEST_F(Waiting, AWeightThatChangesHoldsFromThenOn) {
  WaitingQueue queue({.max_waiting = 100, .max_waiting_tokens = 100});
  uint64_t id = 0;
  const auto push = [&](const std::string& tenant, int weight) {
    queue.Push({.id = ++id, .tenant = tenant, .weight = weight, .deadline = At(9999)}, At(0));
  };
  for (int i = 0; i < 40; ++i) push("a", 1), push("b", 1);
  double now = 0;
  const auto serve = [&](int count) {
    int of_a = 0;
    for (int i = 0; i < count; ++i) {
      const Entry next = *queue.Next(At(now));
      of_a += next.tenant == "a" ? 1 : 0;
      queue.Remove(next.id);
      queue.Started(next.tenant, next.weight, 1, At(now), /*waited=*/true);
      queue.Ended(next.tenant, 1, At(++now), absl::Seconds(1));
    }
    return of_a;
  };
  EXPECT_NEAR(serve(40), 20, 1);
  push("a", 3);
  EXPECT_NEAR(serve(20), 15, 2);
}

TEST_F(Waiting, ThePredictedWaitKnowsWeights) {
  WaitingQueue queue({.max_waiting = 100, .max_waiting_tokens = 100});
  uint64_t id = 0;
  for (int i = 0; i < 12; ++i)
    queue.Push({.id = ++id, .tenant = "heavy", .weight = 3, .deadline = At(99)}, At(0));
  for (int i = 0; i < 3; ++i)
    queue.Push({.id = ++id, .tenant = "light", .weight = 1, .deadline = At(99)}, At(0));
  for (double at : {0.0, 1.0}) {
    const Entry next = *queue.Next(At(at));
    queue.Remove(next.id);
    queue.Started(next.tenant, next.weight, 1, At(at), /*waited=*/true);
  }
  // Behind its own and three of the other's for each: 1 s a place.
  const auto light = queue.PredictWait("light");
  const auto heavy = queue.PredictWait("heavy");
  ASSERT_TRUE(light && heavy);
  EXPECT_GT(*light, absl::Seconds(11));
  EXPECT_LT(*heavy, absl::Seconds(17));
}

}  // namespace
}  // namespace aludel
