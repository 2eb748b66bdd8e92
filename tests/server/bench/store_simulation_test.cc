#include "server/bench/store/store_simulation.h"

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
          .formats = {{"raw", 1, 0.25, 0}},
          .devices = {{"memory", blocks * kBlockBytes, 1e12}},
          .prefill_tokens_per_second = kTraceBlock};
}

TEST(StoreSimulation, WhatFitsIsComputedOnce) {
  for (const char* policy : {"lru", "belady"}) {
    const StoreSimResult result = SimulateStore(Trace({1, 2, 1, 2}), Options(policy, 10));
    EXPECT_NEAR(result.mean_delay, 0.5, 1e-6) << policy;
    EXPECT_NEAR(result.hit_shares[0], 0.5, 1e-6) << policy;
    EXPECT_NEAR(result.whole_hits, 0.5, 1e-6) << policy;
    EXPECT_NEAR(result.mean_kl, 0.25, 1e-6) << policy << ": what was computed was handed over, too";
  }
}

TEST(StoreSimulation, LruThrashesWhereBeladyDoesNot) {
  const std::vector<TraceRequest> trace = Trace({1, 2, 3, 1, 2, 3, 1, 2, 3});
  EXPECT_EQ(SimulateStore(trace, Options("lru", 2)).hit_shares[0], 0);
  EXPECT_GT(SimulateStore(trace, Options("belady", 2)).hit_shares[0], 0.3);
}

TEST(StoreSimulation, ThePromptsEndGoesBeforeItsBeginning) {
  std::vector<TraceRequest> trace;
  for (const double arrival : {0.0, 1.0}) {
    trace.push_back({.arrival = arrival, .input_tokens = 3 * kTraceBlock, .blocks = {1, 2, 3}});
  }
  const StoreSimResult result = SimulateStore(trace, Options("lru", 2));
  EXPECT_NEAR(result.hit_shares[0], 2.0 / 6, 1e-6);
  EXPECT_EQ(result.whole_hits, 0);
  EXPECT_NEAR(result.partial_hits, 0.5, 1e-6);
}

TEST(StoreSimulation, ASlowDeviceHoldsWhatAFastOneHasNoRoomFor) {
  StoreSimOptions options = Options("lru", 1);
  options.devices.push_back({"disk", 10 * kBlockBytes, kTraceBlock * 10.0});  // a tenth of a second a block
  const StoreSimResult result = SimulateStore(Trace({1, 2, 1, 2}), options);
  EXPECT_NEAR(result.mean_delay, (1 + 1 + 0.1 + 0.1) / 4, 1e-6);
  EXPECT_NEAR(result.hit_shares[1], 0.5, 1e-6);
}

TEST(StoreSimulation, FormatsAreAskedForByTheirShares) {
  StoreSimOptions options;
  options.formats = {{.name = "whole"}, {.name = "cut", .share = 3}, {.name = "unasked", .share = 0}};
  std::vector<int> counts(3);
  for (const size_t format : DrawFormats(4000, options)) ++counts[format];
  EXPECT_NEAR(counts[1], 3000, 150);
  EXPECT_EQ(counts[2], 0);
}

}  // namespace
}  // namespace aludel
