#include "server/gateway/routing/policy/choose_replica.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "gtest/gtest.h"

namespace aludel {
namespace {

using Standing = ReplicaView::Standing;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::vector<ReplicaView> Views(size_t count) {
  std::vector<ReplicaView> views(count);
  for (size_t i = 0; i < count; ++i) views[i].id = RendezvousId(std::string(1, static_cast<char>('a' + i)));
  return views;
}

// A prompt of 1,000 tokens takes .1 s.
constexpr RoutingQuery kQuery = {.key = 42, .prompt_tokens = 1000, .objective_seconds = 2};

TEST(ChooseReplica, NoneAmongNone) {
  for (const RoutingPolicy policy :
       {RoutingPolicy::kPrefix, RoutingPolicy::kLeastPending, RoutingPolicy::kRoundRobin}) {
    RoutingQuery query = kQuery;
    query.policy = policy;
    EXPECT_FALSE(ChooseReplica(query, {}).replica);
    std::vector<ReplicaView> out = Views(3);
    for (ReplicaView& view : out) view.standing = Standing::kOut;
    EXPECT_FALSE(ChooseReplica(query, out).replica);
    EXPECT_EQ(ChooseReplica(query, out).reason, RoutingReason::kNone);
    out[1].standing = Standing::kSpare;
    EXPECT_EQ(ChooseReplica(query, out).replica, 1u);
  }
}

TEST(ChooseReplica, StaysWhereThePrefixLives) {
  std::vector<ReplicaView> views = Views(8);
  const RoutingDecision decision = ChooseReplica(kQuery, views);
  EXPECT_EQ(decision.replica, decision.candidates.first);
  EXPECT_EQ(decision.reason, RoutingReason::kFirst);
  EXPECT_NEAR(decision.predicted_ttft, 0.1, 1e-9);
  // Others are idle, but sooner by less than a tenth of the objective.
  views[*decision.candidates.first].wait_seconds = 0.18;
  views[*decision.candidates.second].wait_seconds = 0.19;
  EXPECT_EQ(ChooseReplica(kQuery, views).replica, decision.candidates.first);
}

TEST(ChooseReplica, SpillsWithinTheObjectiveWhereThatIsSoonerByAMargin) {
  std::vector<ReplicaView> views = Views(8);
  const auto [first, second] = ChooseReplica(kQuery, views).candidates;
  views[*first].wait_seconds = 0.22;
  views[*second].wait_seconds = 0.23;
  const RoutingDecision decision = ChooseReplica(kQuery, views);
  EXPECT_NE(decision.replica, first);
  EXPECT_NE(decision.replica, second);
  EXPECT_EQ(decision.reason, RoutingReason::kSpill);
}

TEST(ChooseReplica, WhatIsCachedCountsTwice) {
  std::vector<ReplicaView> views = Views(2);
  const auto [first, second] = ChooseReplica(kQuery, views).candidates;
  views[*second].cached_tokens = 500;
  views[*second].wait_seconds =
      0.08;  // .13 s to the first token there and .1 s at the first, but half of the prefill
  EXPECT_EQ(ChooseReplica(kQuery, views).replica, second);
  views[*second].wait_seconds = 0.12;
  EXPECT_EQ(ChooseReplica(kQuery, views).replica, first);
}

TEST(ChooseReplica, AClientsKeyIsLeftForAMarginAlone) {
  RoutingQuery of_client = kQuery;
  of_client.key_says = true;
  std::vector<ReplicaView> views = Views(8);
  const auto [first, second] = ChooseReplica(kQuery, views).candidates;
  // By a tenth of the objective, .2 s, and a little less. The prompt's prefill counts twice.
  views[*first].wait_seconds = 0.19;
  EXPECT_EQ(ChooseReplica(kQuery, views).replica, second);
  EXPECT_EQ(ChooseReplica(of_client, views).replica, first);
  views[*first].wait_seconds = 0.21;
  EXPECT_EQ(ChooseReplica(of_client, views).replica, second);
  views[*first].wait_seconds = 0;
  size_t other = 0;
  while (other == *first || other == *second) ++other;
  views[other].cached_tokens = 900;
  EXPECT_EQ(ChooseReplica(kQuery, views).replica, other);
  EXPECT_EQ(ChooseReplica(of_client, views).replica, first);
  of_client.prompt_tokens = 10'000;
  views[other].cached_tokens = 9'000;
  EXPECT_EQ(ChooseReplica(of_client, views).replica, other);
}

TEST(ChooseReplica, TheSecondTakesOverWhereItIsSooner) {
  std::vector<ReplicaView> views = Views(8);
  const auto [first, second] = ChooseReplica(kQuery, views).candidates;
  views[*first].wait_seconds = 1;
  RoutingDecision decision = ChooseReplica(kQuery, views);
  EXPECT_EQ(decision.replica, second);
  EXPECT_EQ(decision.reason, RoutingReason::kSecond);
  views[*first].wait_seconds = 0.05;
  views[*first].cached_tokens = 900;
  EXPECT_EQ(ChooseReplica(kQuery, views).replica, first);
}

TEST(ChooseReplica, WhereMostOfItIsCachedWinsOverIdleOnes) {
  std::vector<ReplicaView> views = Views(8);
  const auto [first, second] = ChooseReplica(kQuery, views).candidates;
  size_t holder = 0;
  while (holder == *first || holder == *second) ++holder;
  views[holder].cached_tokens = 900;
  views[holder].wait_seconds = 0.05;
  const RoutingDecision decision = ChooseReplica(kQuery, views);
  EXPECT_EQ(decision.replica, holder);
  EXPECT_EQ(decision.reason, RoutingReason::kCached);
  views[holder].wait_seconds = 0.2;
  EXPECT_EQ(ChooseReplica(kQuery, views).replica, first);
}

TEST(ChooseReplica, SpillsToTheLeastOfAllWhereBothMiss) {
  std::vector<ReplicaView> views = Views(8);
  const auto [first, second] = ChooseReplica(kQuery, views).candidates;
  for (ReplicaView& view : views) view.wait_seconds = 5;
  size_t idle = 0;
  while (idle == *first || idle == *second) ++idle;
  views[idle].wait_seconds = 1;
  const RoutingDecision decision = ChooseReplica(kQuery, views);
  EXPECT_EQ(decision.replica, idle);
  EXPECT_EQ(decision.reason, RoutingReason::kSpill);
  EXPECT_NEAR(decision.predicted_ttft, 1.1, 1e-9);
  // No spill where that is no sooner.
  views[idle].wait_seconds = 6;
  EXPECT_EQ(ChooseReplica(kQuery, views).reason, RoutingReason::kFirst);
}

TEST(ChooseReplica, SparesOnlyWhereNoneIsReady) {
  std::vector<ReplicaView> views = Views(4);
  const size_t first = *ChooseReplica(kQuery, views).candidates.first;
  views[first].standing = Standing::kSpare;
  for (ReplicaView& view : views) view.wait_seconds = 50;
  views[first].wait_seconds = 0;
  EXPECT_NE(ChooseReplica(kQuery, views).replica, first);
  for (ReplicaView& view : views) view.standing = Standing::kSpare;
  EXPECT_EQ(ChooseReplica(kQuery, views).replica, first);
}

TEST(ChooseReplica, ANewReplicaIsWorthLess) {
  ReplicaView view;
  const double grown = PredictTtft(view, 1000);
  view.weight = 0.5;
  EXPECT_NEAR(PredictTtft(view, 1000), 2 * grown, 1e-9);
}

TEST(ChooseReplica, WhatIsNotANumberNeverWins) {
  for (const auto& spoil : std::vector<void (*)(ReplicaView*)>{
           [](ReplicaView* view) { view->wait_seconds = kNan; },
           [](ReplicaView* view) { view->costs.per_token = kNan; },
           [](ReplicaView* view) { view->costs.per_pair = -std::numeric_limits<double>::infinity(); },
           [](ReplicaView* view) { view->weight = kNan; },
           [](ReplicaView* view) { view->wait_seconds = -1e9; }}) {
    std::vector<ReplicaView> views = Views(5);
    const size_t first = *ChooseReplica(kQuery, views).candidates.first;
    spoil(&views[first]);
    // Loaded beyond the objective, so that all are compared.
    for (size_t i = 0; i < 5; ++i) {
      if (i != first) views[i].wait_seconds = 10;
    }
    const RoutingDecision decision = ChooseReplica(kQuery, views);
    ASSERT_TRUE(decision.replica);
    EXPECT_NE(*decision.replica, first);
    // Where it is the only one, it gets the request.
    std::vector<ReplicaView> alone = Views(1);
    spoil(&alone[0]);
    EXPECT_EQ(ChooseReplica(kQuery, alone).replica, 0u);
  }
}

TEST(ChooseReplica, TiesSpreadOverReplicasByKey) {
  std::vector<ReplicaView> views = Views(4);
  for (ReplicaView& view : views) view.wait_seconds = 10;  // both miss
  std::vector<int> counts(4);
  for (uint64_t key = 0; key < 4000; ++key) {
    RoutingQuery query = kQuery;
    query.key = key * 0x9e3779b97f4a7c15;
    ++counts[*ChooseReplica(query, views).replica];
    EXPECT_EQ(ChooseReplica(query, views).replica, ChooseReplica(query, views).replica);
  }
  for (const int count : counts) EXPECT_NEAR(count, 1000, 150);
}

// The choice costs no more than its candidates; where it misses the objective no more than any, else little more.
TEST(ChooseReplica, PropertiesHoldForRandomViews) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> unit(0, 1);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<ReplicaView> views = Views(1 + random() % 12);
    for (ReplicaView& view : views) {
      view.standing = static_cast<Standing>(random() % 3);
      view.weight = 0.1 + 0.9 * unit(random);
      view.wait_seconds = random() % 7 == 0 ? kNan : 4 * unit(random);
      view.cached_tokens = static_cast<int64_t>(random() % 1500);
      view.pending = static_cast<int>(random() % 4);
    }
    RoutingQuery query = kQuery;
    query.key = random();
    const RoutingDecision decision = ChooseReplica(query, views);
    Standing best = Standing::kOut;
    for (const ReplicaView& view : views) best = std::min(best, view.standing);
    ASSERT_EQ(decision.replica.has_value(), best != Standing::kOut);
    if (!decision.replica) continue;
    ASSERT_EQ(views[*decision.replica].standing, best);
    const auto cost = [](const ReplicaView& view) {
      const auto cached = static_cast<double>(std::min<int64_t>(view.cached_tokens, 999));
      return PredictTtft(view, 1000) + 1e-4 * (1000 - cached) / view.weight;
    };
    const double chosen = cost(views[*decision.replica]);
    ASSERT_EQ(PredictTtft(views[*decision.replica], 1000), decision.predicted_ttft);
    constexpr double kRounding = 1e-9;
    for (const auto& candidate : {decision.candidates.first, decision.candidates.second}) {
      if (!candidate) continue;
      ASSERT_LE(chosen, cost(views[*candidate]) + kRounding);
    }
    const ReplicaView* cheapest = nullptr;
    for (const ReplicaView& view : views) {
      if (view.standing == best && (cheapest == nullptr || cost(view) < cost(*cheapest))) cheapest = &view;
    }
    const bool saves = decision.predicted_ttft > query.objective_seconds &&
                       PredictTtft(*cheapest, 1000) <= query.objective_seconds;
    ASSERT_LE(chosen, cost(*cheapest) + (saves ? 0 : kSpillMargin * query.objective_seconds) + kRounding);
  }
}

TEST(ChooseReplica, LeastPendingAndRoundRobinDoWhatTheirNamesSay) {
  std::vector<ReplicaView> views = Views(4);
  for (size_t i = 0; i < 4; ++i) views[i].pending = i == 2 ? 1 : 3;
  views[0].standing = Standing::kOut;
  RoutingQuery query = kQuery;
  query.policy = RoutingPolicy::kLeastPending;
  EXPECT_EQ(ChooseReplica(query, views).replica, 2u);
  query.policy = RoutingPolicy::kRoundRobin;
  for (const size_t want : {1u, 2u, 3u, 1u}) {
    EXPECT_EQ(ChooseReplica(query, views).replica, want);
    ++query.turn;
  }
}

TEST(ChooseReplica, PoliciesHaveNames) {
  EXPECT_EQ(ParseRoutingPolicy("prefix"), RoutingPolicy::kPrefix);
  EXPECT_EQ(ParseRoutingPolicy("least_pending"), RoutingPolicy::kLeastPending);
  EXPECT_EQ(ParseRoutingPolicy("round_robin"), RoutingPolicy::kRoundRobin);
  EXPECT_EQ(ParseRoutingPolicy("Prefix"), std::nullopt);
}

}  // namespace
}  // namespace aludel
