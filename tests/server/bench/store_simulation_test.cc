#include "server/bench/store/store_simulation.h"

#include <random>

#include "gtest/gtest.h"

namespace aludel {
namespace {

constexpr double kBlockBytes = kTraceBlock;  // one byte a token

// Each request is one block.
std::vector<TraceRequest> Trace(const std::vector<int64_t>& blocks) {
  std::vector<TraceRequest> trace;
  for (const int64_t block : blocks) {
    trace.push_back(
        {.arrival = static_cast<double>(trace.size()), .input_tokens = kTraceBlock, .blocks = {block}});
  }
  return trace;
}

// Prefill takes a second a block; loads take nothing worth mentioning.
StoreSimOptions Options(const std::string& policy, double blocks) {
  return {.policy = policy,
          .formats = {{"raw", 1, 0, 0}},
          .devices = {{"memory", blocks * kBlockBytes, 1e12}},
          .prefill_tokens_per_second = kTraceBlock};
}

TEST(StoreSimulation, WhatFitsIsComputedOnce) {
  for (const char* policy : {"lru", "score", "belady", "utility", "greedy"}) {
    const StoreSimResult result = SimulateStore(Trace({1, 2, 1, 2}), Options(policy, 10));
    EXPECT_NEAR(result.mean_delay, 0.5, 1e-6) << policy;
    EXPECT_NEAR(result.hit_shares[0], 0.5, 1e-6) << policy;
  }
}

TEST(StoreSimulation, LruThrashesWhereBeladyDoesNot) {
  const std::vector<TraceRequest> trace = Trace({1, 2, 3, 1, 2, 3, 1, 2, 3});
  EXPECT_EQ(SimulateStore(trace, Options("lru", 2)).hit_shares[0], 0);
  EXPECT_GT(SimulateStore(trace, Options("belady", 2)).hit_shares[0], 0.3);
}

TEST(StoreSimulation, UtilityKeepsWhatIsAskedForOften) {
  std::vector<int64_t> blocks;
  for (int64_t i = 0; i < 100; ++i) {
    blocks.push_back(1);
    for (int64_t other = 0; other < 4; ++other) blocks.push_back(1000 + 4 * i + other);  // never again
  }
  const double lru = SimulateStore(Trace(blocks), Options("lru", 3)).hit_shares[0];
  const StoreSimResult utility = SimulateStore(Trace(blocks), Options("utility", 3));
  EXPECT_EQ(lru, 0);
  EXPECT_GT(SimulateStore(Trace(blocks), Options("score", 3)).hit_shares[0], 0.19);
  EXPECT_GT(utility.hit_shares[0], 0.19);
  EXPECT_LE(utility.bound_share, 1);
  EXPECT_GT(SimulateStore(Trace(blocks), Options("greedy", 8)).hit_shares[0], 0.19);
}

TEST(StoreSimulation, ThePromptsEndGoesBeforeItsBeginning) {
  std::vector<TraceRequest> trace;
  for (const double arrival : {0.0, 1.0}) {
    trace.push_back({.arrival = arrival, .input_tokens = 3 * kTraceBlock, .blocks = {1, 2, 3}});
  }
  for (const char* policy : {"lru", "score"}) {
    EXPECT_NEAR(SimulateStore(trace, Options(policy, 2)).hit_shares[0], 2.0 / 6, 1e-6) << policy;
  }
  // Up to a mark below the limit.
  EXPECT_NEAR(SimulateStore(trace, Options("greedy", 2.5)).hit_shares[0], 2.0 / 6, 1e-6);
}

TEST(StoreSimulation, ASlowDeviceHoldsWhatAFastOneHasNoRoomFor) {
  StoreSimOptions options = Options("lru", 1);
  options.devices.push_back({"disk", 10 * kBlockBytes, kTraceBlock * 10.0});  // a tenth of a second a block
  const StoreSimResult result = SimulateStore(Trace({1, 2, 1, 2}), options);
  EXPECT_NEAR(result.mean_delay, (1 + 1 + 0.1 + 0.1) / 4, 1e-6);
  EXPECT_NEAR(result.hit_shares[1], 0.5, 1e-6);
}

TEST(StoreSimulation, SmallerFormatsAreForThoseWhoPayForThem) {
  std::vector<int64_t> blocks;
  for (int64_t i = 0; i < 200; ++i) blocks.push_back(i % 20);
  StoreSimOptions options = Options("utility", 10);
  options.formats.push_back({"code", 0.1, 0.01, 0});
  const StoreSimResult careless = SimulateStore(Trace(blocks), options);
  options.kl_seconds = 1;  // a block's loss costs more than its prefill
  const StoreSimResult careful = SimulateStore(Trace(blocks), options);
  EXPECT_GT(careless.hit_shares[0], careful.hit_shares[0]);
  EXPECT_GT(careless.mean_kl, 0);
  EXPECT_EQ(careful.mean_kl, 0);
  options.policy = "greedy";
  EXPECT_EQ(SimulateStore(Trace(blocks), options).mean_kl, 0);
  options.kl_seconds = 0;
  const StoreSimResult greedy = SimulateStore(Trace(blocks), options);
  EXPECT_GT(greedy.mean_kl, 0);
  EXPECT_GT(greedy.hit_shares[0], careful.hit_shares[0]);
}

TEST(StoreSimulation, GreedyMovesAreNeverOverALimitAndMoreMemoryIsNeverWorse) {
  std::mt19937 random(3);
  std::geometric_distribution<int> which(0.02);
  std::vector<int64_t> blocks;
  for (int i = 0; i < 5000; ++i) blocks.push_back(which(random));
  double before = 2;
  for (const double memory : {4, 8, 16, 32, 64, 128}) {
    StoreSimOptions options = Options("greedy", memory);
    options.formats.push_back({"code", 0.25, 0.0001, 0});
    options.kl_seconds = 1;
    const StoreSimResult result = SimulateStore(Trace(blocks), options);
    EXPECT_LE(result.most_used, 1);
    const double cost = result.mean_delay + result.mean_kl * kTraceBlock;
    EXPECT_LE(cost, before) << memory;
    before = cost;
  }
}

}  // namespace
}  // namespace aludel
