#include "server/observe/watchdog.h"

#include <atomic>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

using ::testing::HasSubstr;

bool Becomes(const Watchdog& watchdog, bool ok) {
  const absl::Time limit = absl::Now() + absl::Seconds(10);
  while (watchdog.status().ok() != ok && absl::Now() < limit) absl::SleepFor(absl::Milliseconds(10));
  return watchdog.status().ok() == ok;
}

TEST(Watchdog, NamesTheSilentThreadAndForgivesIt) {
  Timer timer;
  std::atomic<int> silent_seconds = 0;
  Watchdog watchdog({{"the engine", [] { return absl::ZeroDuration(); }},
                     {"the press", [&] { return absl::Seconds(silent_seconds.load()); }}},
                    absl::Seconds(3), &timer);
  EXPECT_TRUE(watchdog.status().ok());
  silent_seconds = 4;
  ASSERT_TRUE(Becomes(watchdog, false));
  EXPECT_THAT(std::string(watchdog.status().message()), HasSubstr("the press has made no progress for 4s"));
  silent_seconds = 1;
  EXPECT_TRUE(Becomes(watchdog, true));
}

TEST(Watchdog, NoticesThatItsOwnClockStandsStill) {
  Timer timer;
  absl::Notification go_on;
  Watchdog watchdog({}, absl::Milliseconds(200), &timer);
  timer.At(MonotonicNow(), [&] { go_on.WaitForNotification(); });
  ASSERT_TRUE(Becomes(watchdog, false));
  EXPECT_THAT(std::string(watchdog.status().message()), HasSubstr("the timer"));
  go_on.Notify();
  EXPECT_TRUE(Becomes(watchdog, true));
}

}  // namespace
}  // namespace aludel
