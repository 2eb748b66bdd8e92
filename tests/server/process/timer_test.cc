#include "server/process/timer.h"

#include <atomic>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

using ::testing::ElementsAre;

TEST(Timer, RunsInOrderOfTimeNotOfCalls) {
  Timer timer;
  std::vector<int> order;
  absl::Notification done;
  const absl::Time now = MonotonicNow();
  timer.At(now + absl::Milliseconds(30), [&] {
    order.push_back(3);
    done.Notify();
  });
  timer.At(now + absl::Milliseconds(10), [&] { order.push_back(1); });
  timer.At(now + absl::Milliseconds(20), [&] { order.push_back(2); });
  done.WaitForNotification();
  EXPECT_THAT(order, ElementsAre(1, 2, 3));
}

TEST(Timer, CancelledCallbackNeverRuns) {
  Timer timer;
  std::atomic<bool> ran = false;
  absl::Notification done;
  const absl::Time now = MonotonicNow();
  const Timer::Id id = timer.At(now + absl::Milliseconds(20), [&] { ran = true; });
  timer.At(now + absl::Milliseconds(40), [&] { done.Notify(); });
  timer.Cancel(id);
  timer.Cancel(id);
  done.WaitForNotification();
  EXPECT_FALSE(ran);
}

TEST(Timer, CancelAndWaitOutwaitsARunningCallback) {
  Timer timer;
  absl::Notification started;
  std::atomic<bool> finished = false;
  const Timer::Id id = timer.At(absl::InfinitePast(), [&] {
    started.Notify();
    absl::SleepFor(absl::Milliseconds(20));
    finished = true;
  });
  started.WaitForNotification();
  timer.CancelAndWait(id);
  EXPECT_TRUE(finished);
}

TEST(Timer, DestructionForgetsWhatHasNotStarted) {
  std::atomic<bool> ran = false;
  {
    Timer timer;
    timer.At(MonotonicNow() + absl::Hours(1), [&] { ran = true; });
  }
  EXPECT_FALSE(ran);
}

}  // namespace
}  // namespace aludel
