#include "server/bench/route/route_simulation.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/bench/route/route_report.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

// Conversations of some turns, each a block longer, over a system prompt of one block.
std::vector<SimRequest> Conversations(int count, int turns, double seconds_between) {
  std::vector<TraceRequest> trace;
  for (int turn = 0; turn < turns; ++turn) {
    for (int i = 0; i < count; ++i) {
      TraceRequest request{.arrival = (turn * count + i) * seconds_between, .output_tokens = 20};
      request.blocks.push_back(0);
      for (int block = 0; block <= 4 * (turn + 1); ++block) request.blocks.push_back(1000 * (i + 1) + block);
      request.input_tokens = kTraceBlock * static_cast<int64_t>(request.blocks.size());
      trace.push_back(request);
    }
  }
  return ToSimRequests(trace);
}

double Within(const SimResult& result, double seconds) {
  return static_cast<double>(std::count_if(result.ttft.begin(), result.ttft.end(),
                                           [=](double ttft) { return ttft <= seconds; })) /
         static_cast<double>(result.ttft.size());
}

double Hits(const SimResult& result) {
  return static_cast<double>(result.cached_tokens) / static_cast<double>(result.prompt_tokens);
}

TEST(RouteSimulation, TheSameSeedGivesTheSameRun) {
  const std::vector<SimRequest> requests = Conversations(50, 4, 0.1);
  const SimOptions options{.gateways = 3, .stale_seconds = 0.5, .seed = 5};
  EXPECT_EQ(Simulate(requests, options).ttft, Simulate(requests, options).ttft);
}

TEST(RouteSimulation, EveryPolicyServesEveryRequest) {
  const std::vector<SimRequest> requests = Conversations(40, 3, 0.1);
  for (const char* policy : {"prefix", "least_pending", "round_robin", "hash", "dualmap", "lmetric",
                             "least_ttft", "least_ttft_exact"}) {
    ASSERT_TRUE(CheckSimPolicy(policy).ok());
    const SimResult result = Simulate(requests, {.policy = policy, .gateways = 2});
    for (const double ttft : result.ttft) EXPECT_TRUE(ttft > 0 && ttft < 60) << policy;
    EXPECT_EQ(result.decision_micros.size(), requests.size());
  }
  EXPECT_FALSE(CheckSimPolicy("fastest").ok());
}

TEST(RouteSimulation, AtLowLoadConversationsFindTheirCaches) {
  const std::vector<SimRequest> requests = Conversations(61, 6, 1.0);
  const double ideal = IdealHits(requests);
  for (const int gateways : {1, 4}) {
    const SimResult result = Simulate(requests, {.gateways = gateways, .stale_seconds = 1});
    EXPECT_GT(Hits(result), 0.9 * ideal);
  }
  EXPECT_LT(Hits(Simulate(requests, {.policy = "round_robin"})), 0.5 * ideal);
}

TEST(RouteSimulation, UnderLoadItBeatsWhatKnowsNothingOfPrefixes) {
  const std::vector<SimRequest> requests = Conversations(301, 6, 0.08);
  const double prefix =
      Within(Simulate(requests, {.gateways = 2, .stale_seconds = 1, .objective_seconds = 2}), 2);
  const double pending = Within(Simulate(requests, {.policy = "least_pending", .objective_seconds = 2}), 2);
  const double turns = Within(Simulate(requests, {.policy = "round_robin", .objective_seconds = 2}), 2);
  EXPECT_GT(prefix, pending + 0.1);
  EXPECT_GT(prefix, turns + 0.1);
}

// Where servers idle until others' queues are as long as the objective, the fleet is short of that work from then on.
TEST(RouteSimulation, AtCapacityOneSystemPromptIsServedAsByLeastTtft) {
  const std::vector<SimRequest> requests = Conversations(301, 6, 0.055);
  for (const char* policy : {"least_ttft", "prefix"}) {
    EXPECT_GT(Within(Simulate(requests, {.policy = policy, .objective_seconds = 2}), 2), 0.95) << policy;
  }
}

// What gateways believe of queues is wrong by what the others sent. Conversations that move for that are computed again.
TEST(RouteSimulation, NearCapacityOldStateDoesNotMoveConversations) {
  const std::vector<SimRequest> requests = Conversations(301, 6, 0.062);
  const double ideal = IdealHits(requests);
  for (const uint64_t seed : {1, 2, 3, 4, 5}) {
    const SimResult result =
        Simulate(requests, {.gateways = 4, .stale_seconds = 1, .objective_seconds = 2, .seed = seed});
    EXPECT_GT(Within(result, 2), 0.8) << seed;
    EXPECT_GT(Hits(result), 0.97 * ideal) << seed;
  }
}

// A server that sends a request back tells a queue as it is.
TEST(RouteSimulation, FourGatewaysWithOldReportsServeNearlyWhatExactKnowledgeServes) {
  const std::vector<SimRequest> requests = Conversations(301, 6, 0.055);
  const auto share = [&](const SimOptions& options) { return Within(Simulate(requests, options), 2); };
  const double exact = share({.policy = "least_ttft_exact", .objective_seconds = 2});
  const SimOptions old{.gateways = 4, .stale_seconds = 1, .objective_seconds = 2};
  EXPECT_GT(share(old), exact - 0.03);
  SimOptions without = old;
  without.turn_aways = 0;
  EXPECT_LT(share(without), exact - 0.03);
  EXPECT_GT(Simulate(requests, old).turned_away, 0);
}

// Of what moving what waits could give: it does for gateways whose servers turn nothing away what turning away does.
TEST(RouteSimulation, WhatWaitsMayMoveWhereServersTurnNothingAway) {
  const std::vector<SimRequest> requests = Conversations(301, 6, 0.055);
  SimOptions options{.gateways = 4, .stale_seconds = 1, .turn_aways = 0, .objective_seconds = 2};
  const SimResult stays = Simulate(requests, options);
  EXPECT_EQ(stays.moved, 0) << "gateways do not do it";
  options.moves = 1;
  const SimResult moves = Simulate(requests, options);
  EXPECT_GT(moves.moved, 0);
  EXPECT_LE(moves.moved, static_cast<int64_t>(requests.size()));
  EXPECT_GT(Within(moves, 2), Within(stays, 2));
  for (const double ttft : moves.ttft) EXPECT_TRUE(std::isfinite(ttft));
}

// All queues pass the objective in the end. What goes to the next server by a belief that is wrong, too, is computed again there.
TEST(RouteSimulation, PastCapacityOldStateServesNearlyWhatExactKnowledgeServes) {
  const std::vector<SimRequest> requests = Conversations(301, 6, 0.05);
  const double exact = Within(Simulate(requests, {.policy = "least_ttft_exact", .objective_seconds = 2}), 2);
  const double ideal = IdealHits(requests);
  for (const uint64_t seed : {1, 2, 3}) {
    const SimResult result =
        Simulate(requests, {.gateways = 4, .stale_seconds = 1, .objective_seconds = 2, .seed = seed});
    EXPECT_GT(Within(result, 2), exact - 0.1) << seed;
    EXPECT_GT(Hits(result), 0.99 * ideal) << seed;
  }
}

TEST(RouteSimulation, FarPastCapacityRefusingWhatWouldBeLateServesTheRestInTime) {
  const std::vector<SimRequest> requests = Conversations(301, 6, 0.035);
  SimOptions options{.gateways = 4, .stale_seconds = 1, .objective_seconds = 2};
  const double all = Within(Simulate(requests, options), 2);
  options.max_ttft_seconds = 2;
  const SimResult some = Simulate(requests, options);
  EXPECT_GT(Within(some, 2), all + 0.2);
  const auto served = static_cast<double>(requests.size() - static_cast<size_t>(some.refused));
  EXPECT_GT(Within(some, 2) * static_cast<double>(requests.size()), 0.85 * served);
}

TEST(RouteSimulation, ServersThatFailComeAndGoLoseNoRequest) {
  const std::vector<SimRequest> requests = Conversations(100, 4, 0.1);
  SimOptions options{.replicas = 4, .gateways = 2, .stale_seconds = 0.5};
  for (const char* text : {"5 fail 1 10", "8 add", "12 drain 0", "20 fail 2 1"}) {
    const auto change = ParseSimChange(text);
    ASSERT_TRUE(change.ok()) << change.status();
    options.changes.push_back(*change);
  }
  const SimResult result = Simulate(requests, options);
  EXPECT_GT(result.retried, 0);
  for (const double ttft : result.ttft) EXPECT_TRUE(std::isfinite(ttft));
}

TEST(RouteSimulation, PrefillServersComputeWhatIsLongEnough) {
  const std::vector<SimRequest> requests = Conversations(40, 3, 0.2);
  SimOptions options{
      .replicas = 2,
      .prefill = {.servers = 4, .threshold_tokens = 2100, .bytes_per_token = 100, .compute_share = 0}};
  const SimResult result = Simulate(requests, options);
  // A first turn has 3,072 tokens, and a later one 2,048 that its server does not have.
  const auto handed_over = std::count(result.handed_over.begin(), result.handed_over.end(), true);
  EXPECT_GE(handed_over, 40);
  EXPECT_LT(handed_over, 60);
  EXPECT_GT(result.link_bytes_per_second, 0);
  for (const double ttft : result.ttft) EXPECT_TRUE(std::isfinite(ttft));
  // What a handoff leaves to do takes time, and so does a slow link.
  EXPECT_LT(result.ttft[0], 0.8);
  options.prefill.compute_share = 1;
  EXPECT_GT(Simulate(requests, options).ttft[0], 1.05);
  options.prefill.compute_share = 0;
  options.prefill.link_bytes_per_second = 1e5;
  EXPECT_GT(Simulate(requests, options).ttft[0], 3);
}

TEST(RouteSimulation, ADecodeServerThatFailsDuringHandoffsLosesNoRequest) {
  const std::vector<SimRequest> requests = Conversations(60, 3, 0.1);
  const SimResult result = Simulate(
      requests, {.replicas = 2,
                 .prefill = {.servers = 4},
                 .changes = {{.at = 2, .kind = SimChange::Kind::kFail, .replica = 1, .for_seconds = 0.1}}});
  EXPECT_GT(result.retried, 0);
  for (const double ttft : result.ttft) EXPECT_TRUE(std::isfinite(ttft));
}

TEST(RouteSimulation, TheTimeBetweenTokensHasTheStepsOfPrefillInIt) {
  std::vector<TraceRequest> trace = {{.arrival = 0, .input_tokens = 512, .output_tokens = 11}};
  EXPECT_NEAR(Simulate(ToSimRequests(trace), {.replicas = 1}).itl[0], 0.0082, 1e-9);
  trace.push_back({.arrival = 0.15, .input_tokens = 1024, .output_tokens = 1});
  const SimResult both = Simulate(ToSimRequests(trace), {.replicas = 1});
  EXPECT_GT(both.itl[0], 0.0082 + 1024 * 1.6e-4 / 10);
  EXPECT_EQ(both.itl[1], 0);
}

TEST(RouteSimulation, WhereAllAreDownRequestsWait) {
  const std::vector<SimRequest> requests = Conversations(5, 1, 0.1);
  const SimOptions options{.replicas = 1,
                           .changes = {{.at = 0, .kind = SimChange::Kind::kFail, .for_seconds = 30}}};
  for (const double ttft : Simulate(requests, options).ttft) EXPECT_TRUE(ttft > 29 && ttft < 60);
}

TEST(RouteSimulation, ChangesAreReadOrRefused) {
  EXPECT_EQ(ParseSimChange("900 fail 2 60")->replica, 2u);
  EXPECT_EQ(ParseSimChange("900 fail 2 60")->for_seconds, 60);
  for (const char* text :
       {"", "add", "-1 add", "5 add 3", "5 fail 1", "5 fail 1 -2", "5 drain", "5 burn 1", "nan add"}) {
    EXPECT_THAT(ParseSimChange(text).status().message(), HasSubstr("want \"SECOND add\"")) << text;
  }
}

TEST(RouteSimulation, TheReportNamesEveryPolicy) {
  const std::vector<SimRequest> requests = Conversations(20, 2, 0.1);
  std::vector<RouteRuns> runs;
  for (const char* policy : {"prefix", "hash"}) {
    runs.push_back({.policy = policy, .runs = {Simulate(requests, {.policy = policy})}});
  }
  const auto summary = SummarizeRoutes(runs, 5);
  EXPECT_EQ(summary["policies"][1]["policy"], "hash");
  EXPECT_EQ(summary["policies"][0]["within_objective"], 1);
  EXPECT_THAT(DescribeRoutes(summary), HasSubstr("prefix"));
  EXPECT_THAT(RouteHtml(summary, runs, "title"), HasSubstr("<svg"));
}

}  // namespace
}  // namespace aludel
