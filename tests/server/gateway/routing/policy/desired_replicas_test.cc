#include "server/gateway/routing/policy/desired_replicas.h"

#include "gtest/gtest.h"

namespace aludel {
namespace {

TEST(DesiredReplicas, ThePlacesThatRequestsHoldDecide) {
  // 40 of 160 places fill 1.25 servers up to .8 of theirs.
  EXPECT_EQ(DesiredReplicas().At({.replicas = 4, .pending = 40, .places = 160}, 2, 0), 2);
  EXPECT_EQ(DesiredReplicas().At({.replicas = 4, .pending = 150, .places = 160}, 2, 0), 5);
  EXPECT_EQ(DesiredReplicas().At({.replicas = 4, .pending = 0, .places = 160}, 2, 0), 1);
  EXPECT_EQ(DesiredReplicas().At({.replicas = 4, .pending = 1000}, 2, 0), 1);  // places are not known
}

TEST(DesiredReplicas, SoDoesTheWaitBesideTheObjective) {
  EXPECT_EQ(DesiredReplicas().At({.replicas = 4, .wait_seconds = 1}, 2, 0), 4);
  EXPECT_EQ(DesiredReplicas().At({.replicas = 4, .wait_seconds = 1.5}, 2, 0), 6);
  EXPECT_EQ(DesiredReplicas().At({.replicas = 4, .wait_seconds = 1.5}, 6, 0), 2);
  // However long the queues are.
  EXPECT_EQ(DesiredReplicas().At({.replicas = 4, .wait_seconds = 100}, 2, 0), 8);
}

TEST(DesiredReplicas, AMomentOfLoadIsAveraged) {
  DesiredReplicas desired;
  EXPECT_EQ(desired.At({.replicas = 4, .pending = 32, .places = 160}, 2, 0), 1);
  EXPECT_EQ(desired.At({.replicas = 4, .wait_seconds = 100}, 2, 5), 2);
  for (int i = 1; i <= 60; ++i) desired.At({.replicas = 4, .wait_seconds = 100}, 2, 5 + 5 * i);
  EXPECT_EQ(desired.At({.replicas = 4, .wait_seconds = 100}, 2, 310), 8);
  // More servers with the same requests: the load is as it was.
  DesiredReplicas steady;
  EXPECT_EQ(steady.At({.replicas = 4, .pending = 100, .places = 160}, 2, 0), 4);
  EXPECT_EQ(steady.At({.replicas = 8, .pending = 100, .places = 320}, 2, 300), 4);
}

TEST(DesiredReplicas, WhereNoneTakesRequestsWhatWasSaidHolds) {
  DesiredReplicas desired;
  EXPECT_EQ(desired.At({}, 2, 0), 1);
  EXPECT_EQ(desired.At({.replicas = 4, .wait_seconds = 1.5}, 2, 0), 6);
  EXPECT_EQ(desired.At({}, 2, 1000), 6);
}

}  // namespace
}  // namespace aludel
