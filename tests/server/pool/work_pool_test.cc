#include "server/pool/work_pool.h"

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "runtime/files/stop_scope.h"
#include "transport/monotonic_clock.h"

namespace aludel {
namespace {

// Works until it is stopped, as a loop over a client's bytes does.
void WorkOn(WorkPool::Task& task) {
  while (task.stopped().ok() && CheckStop().ok()) std::this_thread::yield();
}

std::shared_ptr<WorkPool::Task> Submit(WorkPool& pool, WorkPool::Job job,
                                       absl::Time deadline = absl::InfiniteFuture()) {
  auto task = pool.Make(deadline, std::move(job));
  pool.Start(task);
  return task;
}

TEST(WorkPool, RunsWhatItIsGiven) {
  WorkPool pool({.threads = 2});
  std::promise<absl::Status> done;
  Submit(pool, [&](WorkPool::Task& task) { done.set_value(task.stopped()); });
  EXPECT_TRUE(done.get_future().get().ok());
}

TEST(WorkPool, StopsWorkAtItsDeadline) {
  WorkPool pool({.threads = 1});
  std::promise<absl::Status> done;
  const absl::Time start = MonotonicNow();
  Submit(
      pool,
      [&](WorkPool::Task& task) {
        WorkOn(task);
        done.set_value(task.stopped());
      },
      start + absl::Milliseconds(50));
  EXPECT_TRUE(absl::IsDeadlineExceeded(done.get_future().get()));
  EXPECT_GE(MonotonicNow() - start, absl::Milliseconds(50));
}

TEST(WorkPool, SaysForHowLongATaskGoesOnThatWasToStop) {
  WorkPool pool({.threads = 1});
  absl::Notification running;
  absl::Notification let_go;
  const auto task = Submit(pool, [&](WorkPool::Task&) {
    running.Notify();
    let_go.WaitForNotification();
  });
  running.WaitForNotification();
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(pool.Silence(), absl::ZeroDuration());  // it may take as long as its request
  task->Stop(absl::CancelledError("gone"));
  absl::SleepFor(absl::Milliseconds(20));
  EXPECT_GE(pool.Silence(), absl::Milliseconds(20));
  let_go.Notify();
  pool.Shutdown();
  EXPECT_EQ(pool.Silence(), absl::ZeroDuration());
}

TEST(WorkPool, MovesADeadlineForwardOnly) {
  WorkPool pool({.threads = 1});
  std::promise<absl::Status> done;
  const auto task = Submit(pool, [&](WorkPool::Task& running) {
    running.Tighten(MonotonicNow() + absl::Milliseconds(20));
    running.Tighten(MonotonicNow() + absl::Hours(1));
    WorkOn(running);
    done.set_value(running.stopped());
  });
  EXPECT_TRUE(absl::IsDeadlineExceeded(done.get_future().get()));
}

TEST(WorkPool, TellsWaitingWorkAtOnceThatItsDeadlineHasPassed) {
  WorkPool pool({.threads = 1});
  const auto busy = Submit(pool, WorkOn);
  std::promise<absl::Status> done;
  Submit(
      pool, [&](WorkPool::Task& task) { done.set_value(task.stopped()); },
      MonotonicNow() + absl::Milliseconds(20));
  EXPECT_TRUE(absl::IsDeadlineExceeded(done.get_future().get()));
  busy->Stop(absl::CancelledError(""));
}

TEST(WorkPool, KeepsTheFirstReason) {
  WorkPool pool({.threads = 1});
  const auto busy = Submit(pool, WorkOn);
  int calls = 0;
  absl::Status reason;
  const auto task = Submit(pool, [&](WorkPool::Task& stopped) {
    ++calls;
    reason = stopped.stopped();
  });
  task->Stop(absl::CancelledError("the client has gone"));
  task->Stop(absl::InternalError("late"));
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(reason.message(), "the client has gone");
  busy->Stop(absl::CancelledError(""));
}

TEST(WorkPool, StopsWorkBeforeItStarts) {
  WorkPool pool({.threads = 1});
  absl::Status reason;
  const auto task = pool.Make(absl::InfiniteFuture(), [&](WorkPool::Task& made) { reason = made.stopped(); });
  task->Stop(absl::CancelledError("gone"));
  EXPECT_TRUE(reason.ok());
  pool.Start(task);
  EXPECT_TRUE(absl::IsCancelled(reason));
}

TEST(WorkPool, BoundsItsQueue) {
  WorkPool pool({.name = "tests", .threads = 1, .max_queue = 1});
  absl::Notification running;
  const auto busy = Submit(pool, [&](WorkPool::Task& task) {
    running.Notify();
    WorkOn(task);
  });
  running.WaitForNotification();
  const auto waits = Submit(pool, [](WorkPool::Task&) {});
  absl::Status refused;
  Submit(pool, [&](WorkPool::Task& task) { refused = task.stopped(); });
  EXPECT_EQ(refused.ToString(), "UNAVAILABLE: 1 requests wait for tests already; try again soon");
  busy->Stop(absl::CancelledError(""));
}

TEST(WorkPool, EndsWhatRunsAndWhatWaitsAtShutdown) {
  WorkPool pool({.threads = 1});
  std::atomic<int> ended = 0;
  absl::Notification running;
  Submit(pool, [&](WorkPool::Task& task) {
    running.Notify();
    WorkOn(task);
    if (absl::IsUnavailable(task.stopped())) ++ended;
  });
  running.WaitForNotification();
  for (int i = 0; i < 3; ++i) {
    Submit(pool, [&](WorkPool::Task& task) {
      if (absl::IsUnavailable(task.stopped())) ++ended;
    });
  }
  pool.Shutdown();
  EXPECT_EQ(ended, 4);
  Submit(pool, [&](WorkPool::Task& task) {
    if (absl::IsUnavailable(task.stopped())) ++ended;
  });
  EXPECT_EQ(ended, 5);
  pool.Shutdown();
}

}  // namespace
}  // namespace aludel
