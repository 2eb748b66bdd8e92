#include "server/rpc/peer_health.h"

#include "gtest/gtest.h"

namespace aludel {
namespace {

using State = PeerHealth::State;

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(1000 + seconds); }

PeerHealth Ready(double at) {
  PeerHealth health;
  health.Answered(At(at));
  return health;
}

TEST(PeerHealth, OneMissedProbeChangesNothingAndSeveralInARowAreSlow) {
  PeerHealth health = Ready(0);
  health.Missed(At(1), At(2));
  EXPECT_EQ(health.state(), State::kReady);
  health.Missed(At(2), At(3));
  EXPECT_EQ(health.state(), State::kReady);
  health.Answered(At(3.5));
  for (double at : {4.0, 5.0}) health.Missed(At(at), At(at + 1));
  EXPECT_EQ(health.state(), State::kReady) << "not in a row";
  health.Missed(At(6), At(7));
  EXPECT_EQ(health.state(), State::kSlow);
  EXPECT_TRUE(health.usable());
  health.Answered(At(7.5));
  EXPECT_EQ(health.state(), State::kReady);
}

TEST(PeerHealth, WhatComesWhileAProbeWaitsIsAnAnswer) {
  PeerHealth health = Ready(0);
  for (int i = 1; i < 60; ++i) {
    health.Heard(At(i + 0.5));  // tokens, while the probe has to wait
    health.Missed(At(i), At(i + 1));
    EXPECT_EQ(health.state(), State::kReady) << i;
  }
  for (int i = 60; i < 63; ++i) health.Missed(At(i), At(i + 1));
  EXPECT_EQ(health.state(), State::kSlow);
  health.Heard(At(63.5));
  health.Missed(At(63), At(64));
  EXPECT_EQ(health.state(), State::kReady);
}

TEST(PeerHealth, APeerThatIsSilentForLongIsDownUntilAProbeIsAnswered) {
  PeerHealth health = Ready(0);
  for (double at : {1.0, 2.0, 3.0}) health.Missed(At(at), At(at + 1));
  EXPECT_EQ(health.state(), State::kSlow);
  health.Missed(At(4.1), At(5.1));
  EXPECT_EQ(health.state(), State::kDown);
  health.Missed(At(5.5), At(6.5));
  EXPECT_EQ(health.state(), State::kDown);
  health.Answered(At(7));
  EXPECT_EQ(health.state(), State::kReady);
}

TEST(PeerHealth, APeerThatWasSilentIsReadyAgainWhenItsAnswersGoOn) {
  PeerHealth health = Ready(0);
  health.Missed(At(5), At(6));
  EXPECT_EQ(health.state(), State::kDown);
  health.Heard(At(7.5));
  health.Missed(At(7), At(8));
  EXPECT_EQ(health.state(), State::kReady);
  health.Gone();
  health.Heard(At(9.5));
  health.Missed(At(9), At(10));
  EXPECT_EQ(health.state(), State::kDown) << "it was refused, and has to answer";
}

TEST(PeerHealth, ARefusedConnectionCountsAtOnceAndAnUnknownPeerIsNotUsed) {
  PeerHealth health;
  EXPECT_FALSE(health.usable());
  health.Missed(At(0), At(1));
  EXPECT_EQ(health.state(), State::kDown);
  health = Ready(0);
  health.Gone();
  EXPECT_EQ(health.state(), State::kDown);
  EXPECT_FALSE(health.usable());
}

TEST(PeerHealth, ALateCallMakesAReadyPeerSlowAndADownPeerNothing) {
  PeerHealth health = Ready(0);
  health.Late();
  EXPECT_EQ(health.state(), State::kSlow);
  health.Gone();
  health.Late();
  EXPECT_EQ(health.state(), State::kDown);
}

}  // namespace
}  // namespace aludel
