#include "server/decode/handoff/handoff_account.h"

#include <optional>

#include "gtest/gtest.h"

namespace aludel {
namespace {

TEST(HandoffAccount, TellsTheProducersTimesOnceWheneverTheyCome) {
  HandoffAccount account;
  account.Begin(absl::UnixEpoch());
  int told = 0;
  account.WhenComputed([&](const HandoffReport& report) {
    ++told;
    EXPECT_EQ(report.producer->prefill, 2);
    EXPECT_EQ(report.attempts, 1);
  });
  const int attempt = account.BeginAttempt();
  EXPECT_EQ(told, 0);
  EXPECT_TRUE(account.Computed(attempt, {.prefill = 2}));
  EXPECT_TRUE(account.Computed(attempt, {.prefill = 3}));
  EXPECT_EQ(told, 1);
  account.WhenComputed([&](const HandoffReport& report) {
    ++told;
    EXPECT_EQ(report.producer->prefill, 3) << "they had come before";
  });
  EXPECT_EQ(told, 2);
}

TEST(HandoffAccount, IgnoresTimesOfAnEarlierAttempt) {
  HandoffAccount account;
  const int first = account.BeginAttempt();
  const int second = account.BeginAttempt();
  EXPECT_EQ(second, first + 1);
  bool told = false;
  account.WhenComputed([&](const HandoffReport&) { told = true; });
  EXPECT_FALSE(account.Computed(first, {.prefill = 2}));
  EXPECT_FALSE(told);
  EXPECT_FALSE(account.report().producer.has_value());
  EXPECT_EQ(account.report().attempts, 2);
}

TEST(HandoffAccount, HasTheUsageOfTheLastTicket) {
  HandoffAccount account;
  account.Begin(absl::UnixEpoch());
  EXPECT_EQ(account.report().end, absl::InfiniteFuture());
  account.Closed({.frames = 1}, absl::UnixEpoch() + absl::Seconds(1));
  account.Closed({.frames = 7, .bytes = 70}, absl::UnixEpoch() + absl::Seconds(2));
  const HandoffReport report = account.report();
  EXPECT_EQ(report.begin, absl::UnixEpoch());
  EXPECT_EQ(report.end - report.begin, absl::Seconds(2));
  EXPECT_EQ(report.usage.frames, 7);
  EXPECT_EQ(report.usage.bytes, 70);
}

}  // namespace
}  // namespace aludel
