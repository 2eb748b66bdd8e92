#include "kernels/cpu/thread_team.h"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace aludel::cpu {
namespace {

TEST(ThreadTeam, RunsEveryTaskOnce) {
  for (const int threads : {1, 2, 5}) {
    ThreadTeam team(threads);
    EXPECT_EQ(team.threads(), threads);
    for (const int64_t tasks : {0, 1, 2, 3, 64, 1000}) {
      std::vector<std::atomic<int>> runs(tasks);
      team.Run(tasks, [&](int64_t task) { runs[task].fetch_add(1); });
      for (const auto& count : runs) ASSERT_EQ(count.load(), 1);
    }
  }
}

// Loops of different callers meet, and each sees its own tasks' writes when it returns.
TEST(ThreadTeam, ServesSeveralCallersAtOnce) {
  ThreadTeam team(3);
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0};
  for (int c = 0; c < 4; ++c) {
    callers.emplace_back([&] {
      for (int64_t loop = 1; loop < 2000; ++loop) {
        std::vector<int64_t> written(loop % 7 + 1, 0);
        team.Run(static_cast<int64_t>(written.size()), [&](int64_t task) { written[task] = loop + task; });
        for (size_t task = 0; task < written.size(); ++task) {
          if (written[task] != loop + static_cast<int64_t>(task)) wrong.fetch_add(1);
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong.load(), 0);
}

TEST(ThreadTeam, RunsALoopInsideALoop) {
  ThreadTeam team(2);
  std::atomic<int> inner{0};
  team.Run(8, [&](int64_t) { team.Run(8, [&](int64_t) { inner.fetch_add(1); }); });
  EXPECT_EQ(inner.load(), 64);
}

TEST(ThreadTeam, WakesThreadsThatSleep) {
  ThreadTeam team(4);
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // longer than they spin
    std::atomic<int> runs{0};
    team.Run(16, [&](int64_t) { runs.fetch_add(1); });
    ASSERT_EQ(runs.load(), 16);
  }
}

TEST(ThreadTeam, EndsAtOnceHoweverLittleItDid) {
  for (int i = 0; i < 200; ++i) {
    ThreadTeam team(3);
    if (i % 2 == 0) team.Run(4, [](int64_t) {});
  }
}

}  // namespace
}  // namespace aludel::cpu
