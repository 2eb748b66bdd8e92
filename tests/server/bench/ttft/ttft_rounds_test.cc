#include "server/bench/ttft/ttft_rounds.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Servers that take a millisecond for a cold handoff, a tenth of it for a warm one and ten for local prefill,
// and write down what they are asked.
class FakeServers : public TtftTarget {
 public:
  absl::StatusOr<TtftSample> FirstToken(const std::vector<int32_t>& prompt,
                                        const std::string& format) override {
    asked.push_back(format);
    if (asked.size() > dies_after) return absl::UnavailableError("aludel-decode ended with code 1");
    if (format == falls_back) return absl::FailedPreconditionError("raw: the plan was \"fallback\"");
    EXPECT_TRUE(is_idle);
    const bool known = !seen.emplace(prompt, format).second;
    if (format == kLocalPrefill) {
      EXPECT_FALSE(known) << "a prompt came again";
      return TtftSample{.seconds = 1e-2};
    }
    is_idle = false;
    if (known && format != never_cached) {
      ++hits;
      return TtftSample{.seconds = 1e-4};
    }
    return TtftSample{.seconds = 1e-3};
  }
  absl::Status AwaitIdle() override {
    is_idle = true;
    return absl::OkStatus();
  }
  absl::StatusOr<int64_t> StoreHits() override { return hits; }

  std::vector<std::string> asked;
  std::set<std::pair<std::vector<int32_t>, std::string>> seen;
  std::string falls_back, never_cached;
  size_t dies_after = 1 << 20;
  int64_t hits = 0;
  bool is_idle = true;
};

class MeasureRoundsTest : public ::testing::Test {
 protected:
  absl::Status Measure() {
    rounds_.prompt = [this](int64_t tokens) {
      return std::vector<int32_t>(static_cast<size_t>(tokens), next_++);
    };
    rounds_.progress = [](int64_t, int64_t, absl::string_view) {};
    std::mt19937_64 order(1);
    return MeasureRounds(&servers_, rounds_, &order, &rows_);
  }
  const TtftRow& Find(int64_t tokens, const std::string& format, TtftState state) {
    const auto at = std::find_if(rows_.begin(), rows_.end(), [&](const TtftRow& row) {
      return row.tokens == tokens && row.format == format && row.state == state;
    });
    EXPECT_NE(at, rows_.end());
    return *at;
  }

  FakeServers servers_;
  TtftRounds rounds_{.link = 1e9, .lengths = {16, 32}, .formats = {"raw", "scd"}, .repeats = 4};
  int32_t next_ = 0;
  std::vector<TtftRow> rows_;
};

TEST_F(MeasureRoundsTest, TakesEveryWayOnceInEachRound) {
  ASSERT_TRUE(Measure().ok());
  ASSERT_EQ(rows_.size(), 10u);  // local, and two formats cold and warm, of two lengths
  for (const TtftRow& row : rows_) {
    EXPECT_EQ(row.samples.size(), 4u);
    EXPECT_EQ(row.reason, "");
    EXPECT_EQ(row.link, 1e9);
    const double want = row.state == TtftState::kLocal ? 1e-2 : row.state == TtftState::kCold ? 1e-3 : 1e-4;
    for (const TtftSample& sample : row.samples) EXPECT_EQ(sample.seconds, want);
  }
  // Behind one warm-up of each way of the shortest length, each round has the same requests in its own order.
  ASSERT_EQ(servers_.asked.size(), 3u + 4 * 10);
  std::set<std::vector<std::string>> orders;
  for (size_t round = 0; round < 4; ++round) {
    const auto begin = servers_.asked.begin() + 3 + static_cast<std::ptrdiff_t>(10 * round);
    std::vector<std::string> one(begin, begin + 10);
    orders.insert(one);
    EXPECT_EQ(std::count(one.begin(), one.end(), "local"), 2);
    EXPECT_EQ(std::count(one.begin(), one.end(), "raw"), 4);
  }
  EXPECT_GT(orders.size(), 1u);
}

TEST_F(MeasureRoundsTest, ARowThatTheStoreDidNotServeSaysThatItIsNotWarm) {
  servers_.never_cached = "scd";
  ASSERT_TRUE(Measure().ok());
  const TtftRow& warm = Find(16, "scd", TtftState::kWarm);
  EXPECT_TRUE(warm.samples.empty());
  EXPECT_THAT(warm.reason, HasSubstr("not warm"));
  EXPECT_EQ(Find(16, "scd", TtftState::kCold).samples.size(), 4u);
  EXPECT_EQ(Find(16, "raw", TtftState::kWarm).samples.size(), 4u);
}

TEST_F(MeasureRoundsTest, WhatThePlannerChoosesIsMeasuredColdOnly) {
  rounds_.formats = {"planner"};
  ASSERT_TRUE(Measure().ok());
  ASSERT_EQ(rows_.size(), 4u);
  EXPECT_EQ(Find(16, "planner", TtftState::kCold).samples.size(), 4u);
}

TEST_F(MeasureRoundsTest, AFormatThatFallsBackDoesNotLoseTheOthers) {
  servers_.falls_back = "raw";
  ASSERT_TRUE(Measure().ok());
  for (const TtftState state : {TtftState::kCold, TtftState::kWarm}) {
    EXPECT_TRUE(Find(32, "raw", state).samples.empty());
    EXPECT_EQ(Find(32, "raw", state).reason, "raw: the plan was \"fallback\"");
    EXPECT_EQ(Find(32, "scd", state).samples.size(), 4u);
  }
  EXPECT_EQ(std::count(servers_.asked.begin(), servers_.asked.end(), "raw"), 3);  // once, each length once
}

TEST_F(MeasureRoundsTest, ServersThatAreGoneEndItAndWhatWasMeasuredStays) {
  servers_.dies_after = 3 + 10;
  EXPECT_TRUE(absl::IsUnavailable(Measure()));
  ASSERT_EQ(rows_.size(), 10u);
  for (const TtftRow& row : rows_) EXPECT_EQ(row.samples.size(), 1u);
  servers_.asked.clear();
  servers_.dies_after = 2;
  EXPECT_TRUE(absl::IsUnavailable(Measure()));
  for (const TtftRow& row : rows_) EXPECT_EQ(row.reason, "aludel-decode ended with code 1");
}

TEST_F(MeasureRoundsTest, WithoutTimeRowsSaySo) {
  rounds_.allowed = -absl::Seconds(1);
  ASSERT_TRUE(Measure().ok());
  for (const TtftRow& row : rows_) EXPECT_EQ(row.reason, "no time was left for it");
}

}  // namespace
}  // namespace aludel
