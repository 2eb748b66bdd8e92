#include "server/host/shedding.h"

#include "gtest/gtest.h"

namespace aludel {
namespace {

const absl::Time kNow = absl::UnixEpoch() + absl::Seconds(1000);

TEST(Shedding, RefusesWhatWouldComeTooLateAndSaysByHowMuch) {
  const absl::Status shed = ShedIfHopeless(2.5, /*busy=*/true, kNow, kNow + absl::Seconds(1));
  EXPECT_EQ(shed.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(shed.message().find("expected in 2.500 s, the deadline is in 1.000 s"), absl::string_view::npos)
      << shed;
}

TEST(Shedding, TakesWhatMayStillCome) {
  EXPECT_TRUE(ShedIfHopeless(0.9, true, kNow, kNow + absl::Seconds(1)).ok());
  EXPECT_TRUE(ShedIfHopeless(1e9, true, kNow, absl::InfiniteFuture()).ok());
}

TEST(Shedding, AnIdleServerTriesWhateverWasPredicted) {
  EXPECT_TRUE(ShedIfHopeless(2.5, /*busy=*/false, kNow, kNow + absl::Seconds(1)).ok());
}

TEST(Shedding, WhatNobodyHasMeasuredIsTried) {
  EXPECT_TRUE(ShedIfHopeless(std::nullopt, true, kNow, kNow + absl::Milliseconds(1)).ok());
}

}  // namespace
}  // namespace aludel
