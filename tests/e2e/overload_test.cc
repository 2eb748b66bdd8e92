#include <algorithm>
#include <future>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/fleet.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

constexpr int kCrowd = 24;
// More than the crowd takes on any machine and under any sanitizer.
constexpr absl::Duration kLong = absl::Minutes(10);

v1::GenerateRequest Exact(int tokens, int seed) {
  std::vector<int32_t> prompt;
  for (int i = 0; i < tokens; ++i) prompt.push_back(10 + (i * 37 + seed * 101) % 2000);
  v1::GenerateRequest request = Fleet::Request(prompt, 4, "");
  request.set_fidelity(v1::FIDELITY_EXACT);
  return request;
}

TEST(Overload, WhatCannotMeetItsDeadlineIsRefusedAtOnceAndTheOthersAreServed) {
  Fleet fleet({.kv_blocks = 2 * kCrowd * 60, .max_num_seqs = 2 * kCrowd});
  ASSERT_TRUE(fleet.Start());
  // The server learns what a prefill takes, and so do we.
  absl::Duration alone = absl::InfiniteDuration();
  for (int i = 0; i < 8; ++i) {
    const Answer answer = fleet.Ask(Exact(i % 2 == 0 ? 300 : 900, i));
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    if (i % 2 == 1) alone = std::min(alone, answer.took);
  }

  std::vector<std::future<Answer>> crowd;
  for (int i = 0; i < kCrowd; ++i) {
    crowd.push_back(
        std::async(std::launch::async, [&fleet, i] { return fleet.Ask(Exact(900, 10 + i), kLong); }));
  }
  ASSERT_TRUE(
      fleet.decode().WaitMetric("aludel_plans_total{plan=\"local\",reason=\"fidelity\"}", kCrowd + 8));
  const Answer hopeless = fleet.Ask(Exact(900, 99), 4 * alone);
  EXPECT_TRUE(absl::IsResourceExhausted(hopeless.status)) << hopeless.status;
  EXPECT_THAT(std::string(hopeless.status.message()), HasSubstr("the first token is expected in"));
  EXPECT_EQ(fleet.decode().Metric("aludel_plans_total{plan=\"shed\",reason=\"deadline\"}"), 1);
  EXPECT_TRUE(fleet.Ask(Exact(900, 98), kLong).status.ok());  // this one has time

  for (std::future<Answer>& one : crowd) EXPECT_TRUE(one.get().status.ok());
  EXPECT_TRUE(fleet.DecodeIsIdle());
}

TEST(Overload, AnIdleServerTriesEvenWhatItHoldsForHopeless) {
  Fleet fleet({});
  ASSERT_TRUE(fleet.Start());
  ASSERT_TRUE(fleet.Ask(Exact(300, 1)).status.ok());
  ASSERT_TRUE(fleet.Ask(Exact(900, 2)).status.ok());
  const Answer hurried = fleet.Ask(Exact(900, 3), absl::Milliseconds(5));
  EXPECT_TRUE(absl::IsDeadlineExceeded(hurried.status)) << hurried.status;
  EXPECT_LE(fleet.decode().Metric("aludel_plans_total{plan=\"shed\",reason=\"deadline\"}"), 0);
}

}  // namespace
}  // namespace aludel
