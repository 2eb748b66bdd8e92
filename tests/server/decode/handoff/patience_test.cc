#include "server/decode/handoff/patience.h"

#include "gtest/gtest.h"

namespace aludel {
namespace {

constexpr absl::Time kNone = absl::InfiniteFuture();

TEST(Patience, IsThePredictionAndAShareOfIt) {
  const HedgeOptions options = {.max_running = 1, .late_share = 0.2, .late_min = absl::Milliseconds(50)};
  const absl::Time begin = absl::UnixEpoch();
  const auto late_after = [&](const Plan& plan, absl::Time last_frame) {
    return PatienceWith(plan, options).LateAt(begin, last_frame) - begin;
  };
  Plan plan = {.kind = PlanKind::kRemote, .reason = PlanReason::kCoded, .predicted_ttft = 2.0};
  EXPECT_EQ(late_after(plan, kNone), absl::Milliseconds(2400));
  // A handoff that stands still is late before its time is up, one that goes on is not.
  EXPECT_EQ(late_after(plan, begin + absl::Milliseconds(500)), absl::Milliseconds(900));
  EXPECT_EQ(late_after(plan, begin + absl::Milliseconds(2300)), absl::Milliseconds(2400));
  // A machine's moments of absence are no share of anything.
  plan.predicted_ttft = 0.01;
  EXPECT_EQ(late_after(plan, kNone), absl::Milliseconds(60));
}

TEST(Patience, OfWhatIsTriedIsWhatThePlannerSays) {
  const HedgeOptions options = {.max_running = 1, .late_share = 0.2, .late_min = absl::Milliseconds(50)};
  const Plan plan = {
      .kind = PlanKind::kRemote, .reason = PlanReason::kExplore, .predicted_ttft = 2.0, .hedge_after = 0.25};
  EXPECT_EQ(PatienceWith(plan, options).whole, absl::Milliseconds(250));
  EXPECT_EQ(PatienceWith(plan, options).silence, absl::InfiniteDuration());
}

TEST(Patience, HasNoEndWhereNothingIsExpectedOrOneFormatIsAskedFor) {
  HedgeOptions options = {.max_running = 1, .late_share = 0.2, .late_min = absl::Milliseconds(50)};
  const auto endless = [&](const Plan& plan) {
    return PatienceWith(plan, options).LateAt(absl::UnixEpoch(), absl::UnixEpoch()) == absl::InfiniteFuture();
  };
  Plan plan = {.kind = PlanKind::kRemote, .reason = PlanReason::kCoded};
  EXPECT_TRUE(endless(plan));
  plan.predicted_ttft = 1;
  EXPECT_FALSE(endless(plan));
  plan.reason = PlanReason::kForced;
  EXPECT_TRUE(endless(plan));
  plan.reason = PlanReason::kFastest;
  options.max_running = 0;
  EXPECT_TRUE(endless(plan));
}

TEST(Patience, OnlyWhatAHedgeEndedWasOvertaken) {
  HedgeOptions options = {.max_running = 1};
  constexpr absl::StatusCode kLate = absl::StatusCode::kDeadlineExceeded;
  EXPECT_TRUE(WasOvertaken(kLate, 1, /*fastest=*/true, options));
  EXPECT_FALSE(WasOvertaken(absl::StatusCode::kUnavailable, 1, /*fastest=*/true, options));
  EXPECT_FALSE(WasOvertaken(kLate, 2, /*fastest=*/true, options));
  EXPECT_FALSE(WasOvertaken(kLate, 1, /*fastest=*/false, options));
  options.max_running = 0;  // its deadline has passed
  EXPECT_FALSE(WasOvertaken(kLate, 1, /*fastest=*/true, options));
}

TEST(MoveRule, LeavesTheFirstServerTheWholePatienceWhileItsFramesCome) {
  EXPECT_FALSE(MoveRule().ever());
  const MoveRule rule = {.after = absl::Milliseconds(300), .silence = absl::Milliseconds(100)};
  EXPECT_TRUE(rule.ever());
  const Patience patience = {.whole = absl::Milliseconds(600)};
  const absl::Time begin = absl::UnixEpoch();
  const auto move_after = [&](absl::Duration last_frame) {
    return rule.MoveAt(begin, begin + last_frame, patience) - begin;
  };
  EXPECT_EQ(rule.MoveAt(begin, kNone, patience) - begin, absl::Milliseconds(300));
  EXPECT_EQ(move_after(absl::Milliseconds(50)), absl::Milliseconds(300)) << "they have stopped";
  EXPECT_EQ(move_after(absl::Milliseconds(290)), absl::Milliseconds(390));
  EXPECT_EQ(move_after(absl::Milliseconds(590)), absl::Milliseconds(600));
}

}  // namespace
}  // namespace aludel
