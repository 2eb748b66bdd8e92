#include "server/bench/store/store_bound.h"

#include <random>

#include "gtest/gtest.h"

namespace aludel {
namespace {

constexpr double kBlockBytes = kTraceBlock;  // one byte a token

// Each request is one block, or the first of several.
std::vector<TraceRequest> Trace(const std::vector<std::vector<int64_t>>& requests) {
  std::vector<TraceRequest> trace;
  for (const std::vector<int64_t>& blocks : requests) {
    trace.push_back({.arrival = static_cast<double>(trace.size()),
                     .input_tokens = static_cast<int64_t>(blocks.size()) * kTraceBlock,
                     .blocks = blocks});
  }
  return trace;
}

// Prefill takes a second a block; loads from memory take nothing, and from disk half a second.
StoreSimOptions Options(double memory_blocks, double disk_blocks = 0) {
  StoreSimOptions options{.policy = "belady",
                          .formats = {{"raw", 1, 0, 0}},
                          .devices = {{"memory", memory_blocks * kBlockBytes, 1e12}},
                          .prefill_tokens_per_second = kTraceBlock};
  if (disk_blocks > 0) options.devices.push_back({"disk", disk_blocks * kBlockBytes, 2 * kBlockBytes});
  return options;
}

TEST(StoreBound, WhatFitsIsComputedOnce) {
  const StoreSimResult bound = BoundStore(Trace({{1}, {2}, {1}, {2}}), Options(10));
  EXPECT_NEAR(bound.mean_delay, 0.5, 1e-6);
  EXPECT_NEAR(bound.hit_shares[0], 0.5, 1e-6);
}

// In six requests there are six steps of a block's room. Each use of a block that three requests had since takes three.
TEST(StoreBound, RoomIsSharedByThoseThatWaitForTheirUse) {
  const StoreSimResult bound = BoundStore(Trace({{1}, {2}, {3}, {1}, {2}, {3}}), Options(1));
  EXPECT_NEAR(bound.mean_delay, (6 - 2) / 6.0, 1e-3);
}

TEST(StoreBound, ABlockOfMoreBytesTakesMoreRoom) {
  StoreSimOptions options = Options(1);
  options.formats[0].bytes_per_token = 3;
  const StoreSimResult bound = BoundStore(Trace({{1}, {2}, {3}, {1}, {2}, {3}}), options);
  EXPECT_NEAR(bound.mean_delay, (6 - 2 / 3.0) / 6.0, 1e-3);
}

TEST(StoreBound, WhatMemoryHasNoRoomForIsReadFromDisk) {
  const std::vector<TraceRequest> trace = Trace({{1}, {2}, {3}, {1}, {2}, {3}});
  EXPECT_NEAR(BoundStore(trace, Options(1, 10)).mean_delay, (6 - 2 - 0.5) / 6.0, 1e-3);
}

TEST(StoreBound, NoPolicyIsBelowIt) {
  std::mt19937 draw(3);
  for (int round = 0; round < 20; ++round) {
    std::vector<std::vector<int64_t>> requests;
    for (int i = 0; i < 200; ++i) {
      const int64_t prompt = draw() % 12;
      const size_t blocks = 1 + draw() % 4;
      requests.emplace_back();
      for (size_t b = 0; b < blocks; ++b) requests.back().push_back(10 * prompt + static_cast<int64_t>(b));
    }
    const std::vector<TraceRequest> trace = Trace(requests);
    StoreSimOptions options = Options(1 + draw() % 20, 1 + draw() % 20);
    // A code of more bytes than a server's chunk has beside them.
    options.formats[0].bytes_per_token *= 100;
    for (StoreSimDevice& device : options.devices) {
      device.bytes *= 100;
      device.bytes_per_second *= 100;
    }
    const double bound = BoundStore(trace, options).mean_delay;
    for (const char* policy : {"lru", "belady", "server", "server-lru"}) {
      options.policy = policy;
      EXPECT_LE(bound, SimulateStore(trace, options).mean_delay + 1e-9) << policy;
    }
  }
}

}  // namespace
}  // namespace aludel
