#include "kernels/cpu/team_pressure.h"

#include "gtest/gtest.h"

namespace aludel::cpu {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// A team whose loops all look alike, on a clock of its own.
class Loops {
 public:
  // Runs loops for `duration` where the team is used; time passes alike where it is not. Returns the share of
  // the time in which it was not.
  double Run(milliseconds duration, microseconds own, microseconds waited) {
    const TeamPressure::Clock::time_point end = now_ + duration;
    TeamPressure::Clock::duration alone{};
    while (now_ < end) {
      if (pressure_.Alone(now_)) {
        now_ += milliseconds(1);
        alone += milliseconds(1);
        continue;
      }
      now_ += own + waited;
      pressure_.Observe(own, waited, now_);
    }
    return std::chrono::duration<double>(alone) / std::chrono::duration<double>(duration);
  }

 private:
  TeamPressure pressure_;
  TeamPressure::Clock::time_point now_ = TeamPressure::Clock::time_point(milliseconds(1000));
};

TEST(TeamPressure, KeepsTheTeamWhileItsThreadsHaveCores) {
  Loops loops;
  EXPECT_EQ(loops.Run(milliseconds(500), microseconds(90), microseconds(10)), 0);
  // Two long tasks for two threads: one may take almost twice as long as the other.
  EXPECT_EQ(loops.Run(milliseconds(500), microseconds(5000), microseconds(4900)), 0);
  // Short loops whose workers had to be woken.
  EXPECT_EQ(loops.Run(milliseconds(500), microseconds(20), microseconds(60)), 0);
}

TEST(TeamPressure, DoesWithoutThreadsThatGetNoCores) {
  Loops loops;
  EXPECT_GT(loops.Run(milliseconds(20000), microseconds(100), microseconds(3000)), 0.95);
}

TEST(TeamPressure, ComesBackSoonAfterTheCoresAreFree) {
  Loops loops;
  loops.Run(milliseconds(20000), microseconds(100), microseconds(3000));
  loops.Run(TeamPressure::kLongestPause, microseconds(100), microseconds(5));
  EXPECT_EQ(loops.Run(milliseconds(1000), microseconds(100), microseconds(5)), 0);
  // And is patient again: the next pause is a short one.
  EXPECT_LT(loops.Run(milliseconds(120), microseconds(100), microseconds(3000)), 0.9);
}

}  // namespace
}  // namespace aludel::cpu
