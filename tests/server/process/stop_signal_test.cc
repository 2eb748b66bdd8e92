#include "server/process/stop_signal.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include <unistd.h>

#include "gtest/gtest.h"

namespace aludel {
namespace {

// In processes of their own: the signals are theirs, and no thread may be there before.
TEST(StopSignalDeathTest, AProcessThatAsksItselfStopsOnceAndIsNotKilled) {
  EXPECT_EXIT(
      {
        StopSignal stop;
        stop.OnHangup([] { std::fputs("hung up; ", stderr); });
        StopSignal::Ask();
        std::fputs(stop.Wait(), stderr);
        StopSignal::Ask();
        std::exit(7);
      },
      ::testing::ExitedWithCode(7), "^asked by itself$");
}

TEST(StopSignalDeathTest, AskingWhileItStopsDoesNothing) {
  EXPECT_EXIT(
      {
        StopSignal stop;
        kill(getpid(), SIGTERM);
        std::fputs(stop.Wait(), stderr);
        StopSignal::Ask();
        std::exit(7);
      },
      ::testing::ExitedWithCode(7), "^SIGTERM$");
}

TEST(StopSignalDeathTest, AHangupStopsNothing) {
  EXPECT_EXIT(
      {
        StopSignal stop;
        stop.OnHangup([] {
          std::fputs("hung up; ", stderr);
          kill(getpid(), SIGINT);
        });
        kill(getpid(), SIGHUP);
        std::fputs(stop.Wait(), stderr);
        std::exit(7);
      },
      ::testing::ExitedWithCode(7), "^hung up; SIGINT$");
}

}  // namespace
}  // namespace aludel
