#include "server/process/work_clock.h"

#include <memory>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace aludel {
namespace {

TEST(WorkClock, TellsForHowLongTheOldestPieceOfWorkIsUnderWay) {
  WorkClock clock;
  EXPECT_EQ(clock.Longest(), absl::ZeroDuration());
  auto first = std::make_unique<WorkClock::Work>(&clock);
  absl::SleepFor(absl::Milliseconds(20));
  const absl::Time began = MonotonicNow();
  auto second = std::make_unique<WorkClock::Work>(&clock);
  EXPECT_GE(clock.Longest(), absl::Milliseconds(20));
  first.reset();
  const absl::Duration longest = clock.Longest();
  EXPECT_LE(longest, MonotonicNow() - began);
  second.reset();
  EXPECT_EQ(clock.Longest(), absl::ZeroDuration());
}

TEST(WorkClock, GivesEveryPlaceAgain) {
  WorkClock clock;
  std::vector<std::unique_ptr<WorkClock::Work>> all;
  for (int round = 0; round < 3; ++round) {
    for (size_t i = 0; i < WorkClock::kPlaces + 8; ++i) {
      all.push_back(std::make_unique<WorkClock::Work>(&clock));
    }
    all.clear();
    EXPECT_EQ(clock.Longest(), absl::ZeroDuration());
  }
}

}  // namespace
}  // namespace aludel
