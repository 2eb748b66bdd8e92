#include "server/inspect/size_balance.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/inspect/size_command.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

// A second has one prompt of 1,000 tokens, one of 9,000 and 200 tokens of answers. A token of prefill takes 100 us.
SizeDemand ShortAndLong() {
  SizeDemand demand{.output_tokens = 20'000, .seconds = 100};
  for (int i = 0; i < 100; ++i) {
    demand.prompts.push_back({.tokens = 1'000});
    demand.prompts.push_back({.tokens = 9'000});
  }
  return demand;
}

SizeServers Servers() {
  return {.costs = {.step = 0.01,
                    .per_token = 1e-4,
                    .per_pair = 0,
                    .per_sequence = 1e-3,
                    .chunk_tokens = 1'000,
                    .max_sequences = 100}};
}

TEST(SizeBalance, DecodeServersHaveWhatIsNotHandedOver) {
  const SizeObjective objective{.itl = 0.05};
  const SizeFormat format{.bytes_per_token = 1e4, .compute_share = 0.1};
  // .1 s of prefill, .09 s of what the handoff leaves and .2 s of sequences, in steps of which a fifth is their own.
  const SizeBalance balance = BalanceAt(ShortAndLong(), Servers(), objective, format, 1'000);
  EXPECT_NEAR(balance.decode, 0.39 / 0.8, 1e-9);
  EXPECT_NEAR(balance.prefill_compute, 0.9 + 9 * 0.01, 1e-9);
  EXPECT_NEAR(balance.offloaded, 0.5, 1e-9);
  EXPECT_NEAR(balance.link_bytes_per_second, 9e7, 1e-3);
  EXPECT_NEAR(BalanceAlone(ShortAndLong(), Servers(), objective).decode, 1.2 / 0.8, 1e-9);
}

TEST(SizeBalance, PlacesBoundSequences) {
  SizeServers servers = Servers();
  servers.costs.max_sequences = 1;
  // At 200 tokens a second, one a step of 10 ms: two servers for the steps, and the work beside them.
  EXPECT_NEAR(BalanceAlone(ShortAndLong(), servers, {.itl = 1}).decode, 1.2 + 2, 1e-9);
}

TEST(SizeBalance, TheLinkCountsAsPrefillServersUpToItsCap) {
  SizeServers servers = Servers();
  servers.link_bytes_per_second = 1e7;
  servers.link_cap = 0.5;
  const SizeBalance balance = BalanceAt(ShortAndLong(), servers, {}, {.bytes_per_token = 1e4}, 1'000);
  EXPECT_NEAR(balance.link, 18, 1e-9);
  EXPECT_EQ(balance.prefill(), balance.link);
}

TEST(SizeBalance, TheThresholdIsWhereItTakesTheFewestServers) {
  SizeServers servers = Servers();
  servers.prefill_speed = 4;
  EXPECT_EQ(Balances(ShortAndLong(), servers, {.itl = 0.05}, {})[0].threshold_tokens, 0);
  // What it leaves to do costs more than it saves, for long prompts too, but less for them: only those go.
  const auto dear = Balances(ShortAndLong(), servers, {.itl = 0.05}, {.compute_share = 1});
  EXPECT_EQ(dear[0].threshold_tokens, 1'000);
  // The others are there to be tried.
  ASSERT_EQ(dear.size(), 2u);
  EXPECT_EQ(dear[1].threshold_tokens, 0);
}

TEST(SizeBalance, WhatACacheHasIsNotComputed) {
  std::vector<TraceRequest> trace;
  for (int i = 0; i < 3; ++i) {
    trace.push_back({.arrival = 1.0 * i, .input_tokens = 1'024, .output_tokens = 10, .blocks = {1, i / 2}});
  }
  const SizeDemand demand = DemandOf(ToSimRequests(trace));
  EXPECT_EQ(demand.seconds, 2);
  EXPECT_EQ(demand.output_tokens, 30);
  EXPECT_EQ(demand.prompts[0].cached, 0);
  EXPECT_EQ(demand.prompts[1].cached, 1'023);
  EXPECT_EQ(demand.prompts[2].cached, 512);
}

TEST(SizeFlags, ObjectivesAreReadOrRefused) {
  const auto objective = ParseSizeObjective("itl=50ms,ttft=1.5s");
  ASSERT_TRUE(objective.ok()) << objective.status();
  EXPECT_EQ(objective->ttft, 1.5);
  EXPECT_EQ(objective->itl, 0.05);
  for (const char* text : {"", "ttft", "ttft=", "ttft=0s", "ttft=-1s", "itl=inf", "e2e=1s", "ttft=2"}) {
    EXPECT_THAT(ParseSizeObjective(text).status().message(), HasSubstr("want ttft=DURATION")) << text;
  }
}

TEST(SizeFlags, FormatsAreReadOrRefused) {
  const std::vector<SizeFormat> known = {{.name = "raw", .bytes_per_token = 7}};
  EXPECT_EQ(ParseSizeFormat("raw", known)->bytes_per_token, 7);
  EXPECT_EQ(ParseSizeFormat("mine 100 .25", known)->compute_share, 0.25);
  EXPECT_THAT(ParseSizeFormat("cooked", known).status().message(), HasSubstr("want one of raw"));
  for (const char* text : {"", "a 1", "a 1 2", "a -1 0", "a x 0", "a 1 nan", "a 1 0 0"}) {
    EXPECT_FALSE(ParseSizeFormat(text, known).ok()) << text;
  }
}

TEST(SizeFormats, AreTheModelsAndTheArtifacts) {
  const auto formats = FormatsOf("deploy/demo/base", "deploy/demo/codec");
  ASSERT_TRUE(formats.ok()) << formats.status();
  ASSERT_GT(formats->size(), 1u);
  EXPECT_EQ(formats->front().name, "raw");
  EXPECT_EQ(formats->front().bytes_per_token, 2 * 8 * 4 * 32 * 2);
  for (size_t i = 1; i < formats->size(); ++i) {
    EXPECT_GT((*formats)[i].bytes_per_token, 0);
    EXPECT_LT((*formats)[i].bytes_per_token, formats->front().bytes_per_token);
    EXPECT_LE((*formats)[i].compute_share, 1);
  }
  EXPECT_FALSE(FormatsOf("nowhere", "").ok());
}

}  // namespace
}  // namespace aludel
